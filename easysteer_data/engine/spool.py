"""Carries tensors between processes as safetensors files in shared memory; nothing is pickled."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors.torch import load, save_file

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder is made private by mkdtemp
_PREFIX = "easysteer-data-"
_LOCK = ".lock"
_held: dict[Path, BinaryIO | None] = {}
_numbers = count()


def make_spool() -> Path:
    """Make a private folder in shared memory, or in the temporary folder where there is none.

    Its name has the process id of its owner, who holds a lock in it, which ends with the process, however
    that ends: by it what killed drivers left is found, and removed first.
    """
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if (abandoned := _lock(left)) is not None:
            shutil.rmtree(left.parent, ignore_errors=True)
            abandoned.close()
    spool = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    # Locked before it has its name: a lock that is not held yet would look like one that was left.
    unnamed = spool / f"{_LOCK}-new"
    unnamed.touch()
    _held[spool] = _lock(unnamed)
    unnamed.rename(spool / _LOCK)
    return spool


def remove_spool(spool: Path) -> None:
    """Remove the folder and what is left in it."""
    shutil.rmtree(spool, ignore_errors=True)
    if (lock := _held.pop(spool, None)) is not None:
        lock.close()


def _lock(path: Path) -> BinaryIO | None:
    """The file, locked for as long as it is open; None where another process has it or may not be asked."""
    try:
        file = path.open("rb")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


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
