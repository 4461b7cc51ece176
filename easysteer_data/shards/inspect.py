"""Reads a whole run and reports every file that is not as it was written. Changes nothing.

Knows the run's own records; `audit` knows a shard's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.audit import check_statistics, file_fault, inspect_shard
from easysteer_data.shards.checked_json import read_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import layer_keys
from easysteer_data.shards.inspection import Fault, RunInspection, ShardInspection
from easysteer_data.shards.journal import ShardEntry, read_journal
from easysteer_data.shards.manifest import Manifest, check_entry

_MAX_THREADS = 8


def inspect_run(path: Path | str) -> RunInspection:
    """Read every file of a run, finished or not, and compare it with the run's records and with the others.

    Shards are read side by side in threads: hashing leaves the interpreter free.

    Raises:
        RunError: there is no run, or its records are damaged beyond knowing what it consists of.
    """
    path = Path(path)
    manifest, faults = _read_manifest(path)
    header, header_faults = _read_header(path, manifest)
    entries, journal_faults = _read_entries(path, header, manifest)
    if manifest is not None:
        faults += _statistics_faults(path, manifest)
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        inspected = list(pool.map(partial(inspect_shard, path, header), entries.values()))
    by_number = {shard.number: shard for shard in inspected}
    shards = tuple(
        by_number.get(number) or ShardInspection(number, prompts)
        for number, prompts in enumerate(header.plan)
    )
    finished = (path / layout.MANIFEST).is_file()
    measured = {} if manifest is None else manifest.measured
    return RunInspection(path, header, finished, shards, (*faults, *header_faults, *journal_faults), measured)


def _read_manifest(path: Path) -> tuple[Manifest | None, list[Fault]]:
    if not path.is_dir():
        raise RunError(f"{path}: no such folder")
    if not (path / layout.MANIFEST).is_file():
        return None, []
    try:
        return Manifest.from_json(read_json(path / layout.MANIFEST)), []
    except RunError as error:
        return None, [Fault(layout.MANIFEST, str(error).removeprefix(f"{layout.MANIFEST}: "))]


def _read_header(path: Path, manifest: Manifest | None) -> tuple[RunHeader, list[Fault]]:
    """The run's header: the manifest's where there is one, for run.json has to agree with it."""
    try:
        header = RunHeader.from_json(read_json(path / layout.RUN))
    except RunError as error:
        if manifest is None:
            raise RunError(f"{path}: is no run folder, or a damaged one: {error}") from error
        return manifest.header, [Fault(layout.RUN, str(error).removeprefix(f"{layout.RUN}: "))]
    if manifest is not None and header != manifest.header:
        return manifest.header, [Fault(layout.RUN, "is not the header that the manifest has")]
    return header, []


def _read_entries(
    path: Path, header: RunHeader, manifest: Manifest | None
) -> tuple[dict[int, ShardEntry], list[Fault]]:
    """The committed shards: the manifest's where there is one, for the journal has to agree with it."""
    try:
        entries = {entry.number: entry for entry in read_journal(path / layout.JOURNAL)}
        for entry in entries.values():
            check_entry(entry, header)
    except RunError as error:
        if manifest is None:
            raise
        return _by_number(manifest.shards), [Fault(layout.JOURNAL, str(error))]
    if manifest is not None and entries != _by_number(manifest.shards):
        return _by_number(manifest.shards), [Fault(layout.JOURNAL, "lists other shards than the manifest")]
    return entries, []


def _by_number(entries: Iterable[ShardEntry]) -> dict[int, ShardEntry]:
    return {entry.number: entry for entry in entries}


def _statistics_faults(path: Path, manifest: Manifest) -> list[Fault]:
    reason = file_fault(path, manifest.statistics)
    if reason is None:
        try:
            check_statistics(path / layout.STATISTICS, layer_keys(manifest.header.layers), manifest.n_rows)
        except RunError as error:
            reason = str(error)
    return [] if reason is None else [Fault(layout.STATISTICS, reason)]
