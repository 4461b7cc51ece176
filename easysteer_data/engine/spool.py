"""Carries chunks between processes as safetensors files in shared memory; nothing is pickled."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path

from safetensors.torch import load_file, save_file

from easysteer_data.engine.wire import Chunk
from easysteer_data.types import STREAMS

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder is made private by mkdtemp
_numbers = count()


def make_spool() -> Path:
    """Make a private folder in shared memory, or in the temporary folder where there is none."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="easysteer-data-", dir=parent))


def remove_spool(spool: Path) -> None:
    """Remove the folder and what is left in it."""
    shutil.rmtree(spool, ignore_errors=True)


def write_chunk(chunk: Chunk, spool: Path, rank: int) -> str:
    """Write a chunk and return the file's path."""
    path = spool / f"rank{rank}-{next(_numbers)}.safetensors"
    tensors = {"prompt": chunk.prompt, "position": chunk.position, "token_id": chunk.token_id}
    tensors |= {f"values.{stream}": value for stream, value in chunk.values.items()}
    tensors |= {f"peaks.{stream}": value for stream, value in chunk.peaks.items()}
    save_file(tensors, path)
    return str(path)


def read_chunk(path: str) -> Chunk:
    """Read a chunk and remove its file."""
    tensors = load_file(path)
    Path(path).unlink()
    streams = [stream for stream in STREAMS if f"values.{stream}" in tensors]
    return Chunk(
        prompt=tensors["prompt"],
        position=tensors["position"],
        token_id=tensors["token_id"],
        values={stream: tensors[f"values.{stream}"] for stream in streams},
        peaks={stream: tensors[f"peaks.{stream}"] for stream in streams},
    )
