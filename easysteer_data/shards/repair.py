"""Marks the bad shards of a run as not done, so that capturing again makes exactly these anew.

Knows names and records, no tensor.
"""

from __future__ import annotations

from pathlib import Path

from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import readable_json
from easysteer_data.shards.durable import sync_folder, write_durably
from easysteer_data.shards.inspect import inspect_run
from easysteer_data.shards.inspection import RunInspection
from easysteer_data.shards.lock import FolderLock
from easysteer_data.shards.resume import keep_shards, withdraw_manifest
from easysteer_data.shards.space import write_failures_explained


def repair_run(path: Path | str) -> RunInspection:
    """Inspect a run, remove its bad files, strike their shards out of the journal, withdraw the manifest.

    A run without a bad file is left as it is.

    Returns:
        What was found before.

    Raises:
        RunError: there is no run, another process writes it, or the disk fails.
    """
    path = Path(path)
    with FolderLock.acquire(path):
        inspection = inspect_run(path)
        if inspection.bad:
            with write_failures_explained(path):
                _strike_out(inspection)
    return inspection


def _strike_out(inspection: RunInspection) -> None:
    """Bad files go first: a shard that lacks a file is not done, whatever a crash leaves of the rest."""
    out = inspection.path
    for name in dict.fromkeys(fault.name for fault in inspection.bad):
        if name not in (layout.RUN, layout.JOURNAL):
            (out / name).unlink(missing_ok=True)
            sync_folder((out / name).parent)
    if any(fault.name == layout.RUN for fault in inspection.faults):
        write_durably(out / layout.RUN, readable_json(inspection.header.to_json()))
    keep_shards(out, (shard.entry for shard in inspection.shards if shard.entry and not shard.faults))
    withdraw_manifest(out)
