"""Carries tensors between processes as safetensors files in shared memory; nothing is pickled."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load, save_file

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder is made private by mkdtemp
_numbers = count()


def make_spool() -> Path:
    """Make a private folder in shared memory, or in the temporary folder where there is none."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="easysteer-data-", dir=parent))


def remove_spool(spool: Path) -> None:
    """Remove the folder and what is left in it."""
    shutil.rmtree(spool, ignore_errors=True)


def put(tensors: Mapping[str, torch.Tensor], spool: str, rank: int) -> str:
    """Write tensors and return the file's path."""
    path = Path(spool) / f"rank{rank}-{next(_numbers)}.safetensors"
    save_file(dict(tensors), path)
    return str(path)


def take(path: str) -> dict[str, torch.Tensor]:
    """Read tensors and remove their file."""
    file = Path(path)
    # Read, not mapped: a mapping would keep the shared memory after the file is gone.
    tensors: dict[str, torch.Tensor] = load(file.read_bytes())
    file.unlink()
    return tensors
