"""Makes a folder ready for a run: a new one, the one that was begun there, or one in its place.

What a crash left is put in order here, so that the writer only ever appends. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from easysteer_data.errors import RunError, SettingsMismatchError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import canonical_json, parse_json, read_json, readable_json
from easysteer_data.shards.difference import differences
from easysteer_data.shards.durable import (
    is_partial,
    make_folder,
    remove_partial_files,
    sync_folder,
    write_durably,
)
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.journal import ShardEntry, journal_bytes, read_journal
from easysteer_data.shards.lock import LOCK, FolderLock
from easysteer_data.shards.manifest import check_entry
from easysteer_data.shards.overwrite import remove_run
from easysteer_data.shards.shard_files import make_folders
from easysteer_data.types import OnExisting

# The fingerprint stands for all of these; they are compared too, in case a caller's fingerprint does not.
_FIXED = ("fingerprint", "streams", "label", "plan", "pack_bytes", "rows")


def lock_folder(out: Path) -> FolderLock:
    """Lock a run folder, made where it is missing; nothing is touched in a folder of something else.

    Raises:
        RunError: the folder holds something else, can't be made, or another process writes there.
    """
    if not (out / layout.RUN).is_file():
        _refuse_strangers(out)
    try:
        make_folder(out)
    except OSError as error:
        raise RunError(f"{out}: can't be made ({error.strerror})") from error
    return FolderLock.acquire(out)


def claim_folder(
    out: Path, header: RunHeader, on_existing: OnExisting = "resume"
) -> tuple[RunHeader, dict[int, ShardEntry]]:
    """Begin a run in a locked folder, or find the one in it; nothing is touched in a folder that is refused.

    Returns:
        The header that stands, and the committed shards by number.

    Raises:
        SettingsMismatchError: the folder holds a run of other settings; the message shows the difference.
        RunError: the folder holds something else, a damaged run, or a run that `on_existing` refuses.
    """
    if on_existing not in get_args(OnExisting):
        raise RunError(f"on_existing must be one of {', '.join(get_args(OnExisting))}, found {on_existing!r}")
    found = (out / layout.RUN).is_file()
    if found and on_existing == "fail":
        raise RunError(
            f"{out} holds a run already; on_existing=resume continues it or leaves it as it is where it is "
            "finished, on_existing=overwrite removes it first; or choose another output folder"
        )
    if found and on_existing == "resume":
        header = same_run(out, header)
    else:
        if found:
            remove_run(out)
        else:
            _refuse_strangers(out)
        write_durably(out / layout.RUN, readable_json(header.to_json()))
    remove_partial_files(out)
    make_folders(out, header)
    return header, _committed(out, header)


def _refuse_strangers(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file; choose another output folder")
    strangers = sorted(path.name for path in out.iterdir() if not is_partial(path) and path.name != LOCK)
    if strangers:
        raise RunError(
            f"{out} is not empty (it holds {strangers[0]}) and has no {layout.RUN}, so it is no run folder; "
            "choose another output folder"
        )


def read_header(out: Path) -> RunHeader:
    """What a run folder says of its run; RunError if it can't be read."""
    try:
        return RunHeader.from_json(read_json(out / layout.RUN))
    except RunError as error:
        raise RunError(f"the run in {out} can't be continued: {error}") from error


def same_run(out: Path, header: RunHeader) -> RunHeader:
    """The folder's own header, if it is of the same run.

    Raises:
        SettingsMismatchError: it is of another one; the message shows the difference.
    """
    found = read_header(out)
    refuse_other_run(found, header, str(out))
    return found


def refuse_other_run(found: RunHeader, header: RunHeader, out: str) -> None:
    """Raise SettingsMismatchError with the difference if the header found in `out` is of another run."""
    there = found.to_json()
    # Through JSON, as the one in the folder went, so that a tuple is no difference to a list.
    asked = parse_json(canonical_json(header.to_json()), "the run asked for").values
    if all(there[name] == asked[name] for name in _FIXED):
        return
    del there["provenance"], asked["provenance"]  # differs between any two starts
    raise SettingsMismatchError(
        f"{out} holds a run of other settings; choose another output folder, or replace this run with "
        "on_existing=overwrite. The difference (there -> asked for):\n  "
        + "\n  ".join(differences(there, asked))
    )


def _committed(out: Path, header: RunHeader) -> dict[int, ShardEntry]:
    """The shards that are done; what the journal says beyond them is struck out, and a manifest with it."""
    entries = {entry.number: entry for entry in read_journal(out / layout.JOURNAL)}
    for entry in entries.values():
        check_entry(entry, header)
    done = {number: entry for number, entry in entries.items() if not entry.faults(out)}
    keep_shards(out, done.values())
    if len(done) < len(header.plan):
        withdraw_manifest(out)
    return done


def keep_shards(out: Path, done: Iterable[ShardEntry]) -> None:
    """Make the journal list these shards and no others."""
    path = out / layout.JOURNAL
    data = journal_bytes(done)
    if not path.is_file() or path.read_bytes() != data:
        write_durably(path, data)


def withdraw_manifest(out: Path) -> None:
    """Make the run an unfinished one again."""
    if (out / layout.MANIFEST).is_file():
        (out / layout.MANIFEST).unlink()
        sync_folder(out)
