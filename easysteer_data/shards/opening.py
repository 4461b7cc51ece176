"""Opens a finished run folder: which files must be there, and that they fit each other. Maps no row.

Trusts nothing in a file: sizes and hashes come from the manifest, spans are checked against sizes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json, read_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import ShardIndex, read_index
from easysteer_data.shards.journal import ShardEntry, read_journal
from easysteer_data.shards.manifest import Manifest, read_manifest
from easysteer_data.shards.reader import Run

R = TypeVar("R", bound=Run)


def open_run(path: Path | str) -> Run:
    """Open a finished run.

    Checks that each file is there, has its size, and that each index fits its files; hashes of the rows are
    not checked here.

    Raises:
        RunError: there is no run, it is not finished, or another schema version wrote it.
        BadShardError: files are missing or altered; the message lists all of them.
    """
    return open_run_as(Run, path)


def open_run_as(kind: type[R], path: Path | str) -> R:
    """Open a finished run as a class of readers that adds to Run; see `open_run`."""
    path = Path(path)
    if not (path / layout.MANIFEST).is_file():
        raise RunError(_why_no_manifest(path))
    manifest = read_manifest(path)
    faults = manifest.faults(path)
    shards = []
    for entry in manifest.shards:
        if entry.faults(path) or not manifest.header.rows:
            continue
        try:
            shards.append(_open_index(path, manifest, entry))
        except RunError as error:
            faults.append(str(error))
    if faults:
        raise BadShardError(
            f"{path}: {len(faults)} bad files; capture again with the same settings to mend them\n  "
            + "\n  ".join(faults)
        )
    return kind(path, manifest, shards)


def _open_index(path: Path, manifest: Manifest, entry: ShardEntry) -> ShardIndex:
    name = layout.index_name(entry.number)
    data = (path / name).read_bytes()
    (listed,) = (file for file in entry.files if file.name == name)
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise RunError(f"{name}: altered, its sha256 is not the manifest's")
    return read_index(parse_json(data, name), manifest.header, entry)


def _why_no_manifest(path: Path) -> str:
    if not path.is_dir():
        return f"{path}: no such folder"
    if not (path / layout.RUN).is_file():
        return f"{path}: is no run folder, it has neither {layout.MANIFEST} nor {layout.RUN}"
    n_planned = len(RunHeader.from_json(read_json(path / layout.RUN)).plan)
    n_committed = len(read_journal(path / layout.JOURNAL))
    return (
        f"{path}: the run is unfinished, {n_committed} of {n_planned} shards are committed; "
        "capture again with the same settings to finish it"
    )
