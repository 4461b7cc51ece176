"""Where a captured run goes: a folder, or a URL of an object store by way of a spool. Knows no engine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from easysteer_data.errors import SettingsError
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import Manifest, RunHeader, RunWriter, finished_run
from easysteer_data.shards.object_store import ObjectStore, is_url
from easysteer_data.shards.remote_writer import RemoteRunWriter, Spool, finished_remote_run

Output = Path | str
"""A folder, or a URL as text."""


def check_output(settings: ExperimentSettings, out: Output) -> None:
    """Raise SettingsError if what the settings ask for can't go to a URL."""
    if is_url(out) and settings.shard_slice is not None:
        raise SettingsError(
            f"{out}: slices are written into folders; give one that they share as out, and copy "
            "the finished run"
        )


def find_finished(settings: ExperimentSettings, out: Output, fingerprint: str) -> Manifest | None:
    """The manifest of a complete run of this fingerprint, None where there is none."""
    if is_url(out):
        return finished_remote_run(_store(settings, out), fingerprint)
    return finished_run(Path(out), fingerprint)


def open_writer(settings: ExperimentSettings, out: Output, header: RunHeader) -> RunWriter | RemoteRunWriter:
    """Begin a run, or continue the one that is there; see the writers' own `open`."""
    min_free_bytes = int(settings.shards.min_free_gb * 1e9)
    if not is_url(out):
        return RunWriter.open(
            Path(out), header, on_existing=settings.on_existing, min_free_bytes=min_free_bytes
        )
    max_bytes = int(settings.upload.spool_gb * 1e9)
    spool = Spool(local_folder(settings, out) / "spool", max_bytes, min_free_bytes)
    return RemoteRunWriter.open(_store(settings, out), header, spool, settings.on_existing)


def local_folder(settings: ExperimentSettings, out: Output) -> Path:
    """The folder of what a capture keeps on this machine: the run's own, or one for a URL."""
    if not is_url(out):
        return Path(out)
    return Path(settings.upload.spool) / hashlib.sha256(str(out).encode()).hexdigest()[:16]


def _store(settings: ExperimentSettings, out: Output) -> ObjectStore:
    return ObjectStore(str(out).rstrip("/"), dict(settings.upload.options))
