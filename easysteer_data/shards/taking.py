"""A finished file goes from one folder to another: moved, linked or copied, whole at every moment.

Knows names, sizes and hashes.
"""

from __future__ import annotations

import os
from pathlib import Path

from easysteer_data.errors import BadShardError
from easysteer_data.shards.durable import DurableFile
from easysteer_data.shards.journal import FileEntry

_BLOCK_BYTES = 8 * 2**20


def take_file(file: FileEntry, source: Path, out: Path, *, keep: bool) -> None:
    """Bring a file of the folder `source` into `out` under the same name, in place of one that is there.

    A file that the file system can neither link nor move is copied, and its hash checked on the way. The
    caller puts the new name on disk with `sync_folder`.

    Raises:
        BadShardError: the file was altered since its hash was taken.
        OSError: of the file system.
    """
    there, here = source / file.name, out / file.name
    try:
        if keep:
            here.unlink(missing_ok=True)
            os.link(there, here)
        else:
            there.replace(here)
    except OSError:  # another file system, or one without hard links
        _copy(file, there, here)
        if not keep:
            there.unlink()


def _copy(file: FileEntry, there: Path, here: Path) -> None:
    with there.open("rb") as source, DurableFile(here) as copy:
        while block := source.read(_BLOCK_BYTES):
            copy.write(block)
        if copy.sha256 != file.sha256:
            raise BadShardError(f"{there}: altered, its sha256 is not the journal's")
