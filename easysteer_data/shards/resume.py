"""Makes a folder ready for a run: a new one, or the one that was begun there. Knows no tensor.

What a crash left is put in order here, so that the writer only ever appends.
"""

from __future__ import annotations

from pathlib import Path

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
from easysteer_data.shards.manifest import check_entry

# The fingerprint stands for all of these; they are compared too, in case a caller's fingerprint does not.
_FIXED = ("fingerprint", "streams", "label", "plan", "pack_bytes")


def claim_folder(out: Path, header: RunHeader) -> tuple[RunHeader, dict[int, ShardEntry]]:
    """Create a run folder or find the run in it; nothing is touched in a folder that is refused.

    Returns:
        The header that stands, and the committed shards by number.

    Raises:
        SettingsMismatchError: the folder holds a run of other settings; the message shows the difference.
        RunError: the folder holds something else, or a damaged run.
    """
    if (out / layout.RUN).is_file():
        header = _same_run(out, header)
    else:
        _refuse_strangers(out)
        make_folder(out)
        write_durably(out / layout.RUN, readable_json(header.to_json()))
    remove_partial_files(out)
    for folder in layout.folders(header.layers):
        make_folder(out / folder)
    return header, _committed(out, header)


def _refuse_strangers(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file; choose another output folder")
    strangers = sorted(path.name for path in out.iterdir() if not is_partial(path))
    if strangers:
        raise RunError(
            f"{out} is not empty (it holds {strangers[0]}) and has no {layout.RUN}, so it is no run folder; "
            "choose another output folder"
        )


def _same_run(out: Path, header: RunHeader) -> RunHeader:
    """The folder's own header, if it is of the same run."""
    try:
        found = RunHeader.from_json(read_json(out / layout.RUN))
    except RunError as error:
        raise RunError(f"the run in {out} can't be continued: {error}") from error
    there = found.to_json()
    # Through JSON, as the one in the folder went, so that a tuple is no difference to a list.
    asked = parse_json(canonical_json(header.to_json()), "the run asked for").values
    if all(there[name] == asked[name] for name in _FIXED):
        return found
    raise SettingsMismatchError(
        f"{out} holds a run of other settings; choose another output folder or delete this one. "
        "The difference (there -> asked for):\n  " + "\n  ".join(differences(there, asked))
    )


def _committed(out: Path, header: RunHeader) -> dict[int, ShardEntry]:
    """The shards that are done; what the journal says beyond them is struck out, and a manifest with it."""
    path = out / layout.JOURNAL
    entries = {entry.number: entry for entry in read_journal(path)}
    for entry in entries.values():
        check_entry(entry, header)
    done = {number: entry for number, entry in entries.items() if not entry.faults(out)}
    data = journal_bytes(done.values())
    if not path.is_file() or path.read_bytes() != data:
        write_durably(path, data)
    if len(done) < len(header.plan) and (out / layout.MANIFEST).is_file():
        (out / layout.MANIFEST).unlink()
        sync_folder(out)
    return done
