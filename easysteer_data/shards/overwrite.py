"""Removes a run from its folder, file by file, so that a crash on the way leaves a run to overwrite again.

Knows which files a run's header implies; touches no other.
"""

from __future__ import annotations

from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import read_json
from easysteer_data.shards.durable import is_partial, remove_partial_files, sync_folder
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.lock import LOCK, FolderLock

_MAX_SHOWN = 5


def remove_run(out: Path) -> None:
    """Remove all files and folders of the run in a locked folder, except run.json: the caller replaces it.

    The manifest goes first, so that at no moment a run passes for finished that is not; run.json stays last,
    so that the folder is a run's for as long as anything of the run is in it.

    Raises:
        RunError: the folder holds files that are not the run's, and is left as it is; or run.json can't be
            read, so that nobody knows which files are the run's.
    """
    try:
        header = RunHeader.from_json(read_json(out / layout.RUN))
    except RunError as error:
        raise RunError(
            f"the run in {out} can't be overwritten: {error}; delete the folder yourself"
        ) from error
    folders = [out / name for name in layout.folders(header.tar_layers)]
    files = [out / name for name in _files(header)]
    _refuse_strangers(out, {*files, *folders, out / layout.RUN, out / LOCK})
    remove_partial_files(out)
    for path in files:
        if path.is_file():
            path.unlink()
            if path.name == layout.MANIFEST:
                sync_folder(out)
    for folder in reversed(folders):
        if folder.is_dir():
            folder.rmdir()
    sync_folder(out)


def remove_run_folder(out: Path) -> None:
    """Remove a run and its folder, which must hold nothing else.

    Raises:
        RunError: as `remove_run`, or another process writes there.
    """
    with FolderLock.acquire(out):
        remove_run(out)
        (out / layout.RUN).unlink()
    out.rmdir()


def _files(header: RunHeader) -> list[str]:
    """Every file that the run may have beside run.json, in the order in which they go."""
    shards = (
        name for number in range(len(header.plan)) for name in layout.shard_names(header.tar_layers, number)
    )
    return [layout.MANIFEST, layout.STATISTICS, layout.JOURNAL, layout.MEASURED, *shards]


def _refuse_strangers(out: Path, own: set[Path]) -> None:
    strangers = sorted(
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if (path not in own or path.is_symlink()) and not is_partial(path)
    )
    if strangers:
        more = ", ..." if len(strangers) > _MAX_SHOWN else ""
        raise RunError(
            f"{out} holds {len(strangers)} names that are not its run's, so it is not overwritten: "
            f"{', '.join(strangers[:_MAX_SHOWN])}{more}; move them away or choose another output folder"
        )
