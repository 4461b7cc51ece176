"""Disk space: whether a shard fits before it is written, and what to tell people when a write failed.

Knows sizes and errors of the operating system, no tensor.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards.header import RunHeader

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file system takes no larger file",
}
_CONTINUE = "capture again with the same settings to continue"
# int32 prompt, position and token id, a scale, and a label of at most 8 bytes, beside each row of each layer.
_LABEL_BYTES = 4 * 4 + 8


def shard_bytes(header: RunHeader, n_rows: int) -> int:
    """About how many bytes the rows of one shard take on disk, over all streams and layers."""
    if not header.rows:
        return 0
    return sum(
        n_rows * len(layer_ids) * (header.streams[stream].row_bytes + _LABEL_BYTES)
        for stream, layer_ids in header.tar_layers.items()
    )


def check_space(out: Path, n_bytes: int, min_free_bytes: int) -> None:
    """Check that a file system keeps `min_free_bytes` free when `n_bytes` more are written.

    Raises:
        RunError: it would not; the message has both figures in GB.
    """
    free = shutil.disk_usage(out).free
    if free - n_bytes < min_free_bytes:
        raise RunError(
            f"{out}: stopped before the disk is full: {_gb(free)} are free, the next shard needs "
            f"{_gb(n_bytes)} and {_gb(min_free_bytes)} must stay free. Make room, then {_CONTINUE}"
        )


@contextmanager
def write_failures_explained(out: Path) -> Iterator[None]:
    """Turn what the operating system says in the block into a RunError that tells people how to go on."""
    try:
        yield
    except OSError as error:
        full = _FULL.get(error.errno or 0)
        what, remedy = ("can't be written", "Mend that") if full is None else (full, "Make room")
        where = "" if error.filename is None else f" at {os.fspath(error.filename)}"
        raise RunError(
            f"{out}: {what} ({error.strerror or error}{where}; {_gb(shutil.disk_usage(out).free)} free). "
            f"Finished shards are kept. {remedy}, then {_CONTINUE}"
        ) from error


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.3f} GB"
