"""Which folder an experiment's captured run is in: its own, or one that several share. Knows no config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from easysteer_data.errors import SettingsError
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import mirror_run
from easysteer_data.shards.object_store import is_url
from easysteer_data.shards.remote_files import RemoteFiles

_N_SHOWN = 16  # hex digits of a fingerprint in a folder's name


def run_folder(settings: ExperimentSettings) -> Path:
    """The folder of the run that stages read: the one that is named, or the experiment's own.

    Raises:
        SettingsError: the experiment's output is a URL.
    """
    if settings.run is None and is_url(settings.out):
        raise SettingsError(
            f"out={settings.out} is a URL, which only capture can write to; read the run with "
            f"data.root={settings.out.rstrip('/')}/capture and a folder as out"
        )
    return Path(settings.out) / "capture" if settings.run is None else Path(settings.run)


def local_out(out: str, name: str) -> str:
    """The folder of an experiment's small files: `out`, or where that is a URL, one of its name."""
    return f"outputs/{name}" if is_url(out) else out


def run_to_serve(settings: ExperimentSettings) -> Path:
    """The folder of the run whose rows are served; of one at a URL, a local copy of the layers asked for."""
    data = settings.data
    if data.root is None:
        return run_folder(settings)
    layers = [data.layers] if isinstance(data.layers, int) else data.layers
    files = RemoteFiles(data.root, dict(data.root_options))
    return mirror_run(files, Path(data.cache), {data.stream: layers})


def output_to_capture(settings: ExperimentSettings, fingerprint: str) -> Path | str:
    """The folder or URL to capture into; of shared runs, experiments of one fingerprint get one folder.

    `out/capture` then is a link to it, so that later stages find the run where they always do.
    """
    if is_url(settings.out):
        return f"{settings.out.rstrip('/')}/capture"
    if settings.captures is None:
        return run_folder(settings)
    shared = Path(settings.captures) / fingerprint[:_N_SHOWN]
    link = Path(settings.out) / "capture"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        shared.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(shared, link.parent), target_is_directory=True)
    return shared


def first_run(folders: Sequence[Path]) -> Path | None:
    """The first of some experiments' folders that has a captured run."""
    return next((out / "capture" for out in folders if (out / "capture").is_dir()), None)
