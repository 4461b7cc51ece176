"""Many files in one stretch of addresses, so that one gather reads from all of them at once.

Knows sizes and paths, nothing of rows. POSIX only, as the rest of the package is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from easysteer_data.errors import BadShardError

_MAP_FIXED = 0x10  # of <sys/mman.h> on Linux and macOS; Python's mmap can't place a mapping
_MAP_FAILED = ctypes.c_void_p(-1).value

# Large pages of x86 and ARM. Where a file's page cache is in pieces of this size (xfs since Linux 5.18,
# ext4 since 6.16), one entry of the page tables maps a whole piece, if the file's place begins at a multiple.
_PAGE = 2 * 2**20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_ssize_t,
]


class FileRegion:
    """Read-only memory with a place for each of a list of files; a file's bytes appear once it is mapped.

    One mapping of a whole run in place of one a file: a batch whose rows lie in n shards costs one gather
    instead of n, and no file stays open, so that a thousand shards don't meet the limit of open files.
    Places not mapped read as zeros.

    Attributes:
        offsets: byte offset of each file's place.
        data: uint8 [total], the whole region; writing to it would end the process.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        *offsets, total = accumulate((_aligned(size) for size in sizes), initial=0)
        self.offsets = tuple(offsets)
        # Only reserves addresses; the object unmaps all of them, the files too, when it is collected.
        reserved = mmap.mmap(-1, total + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=mmap.PROT_READ)
        self._address = _aligned(np.frombuffer(reserved, dtype=np.uint8).ctypes.data)
        # By way of ctypes, because torch warns of any memory that says it is read-only.
        memory = (ctypes.c_uint8 * total).from_address(self._address)
        # The tensor and its views keep `memory` alive, and with it the mapping.
        memory.owner = reserved  # type: ignore[attr-defined]
        self.data = torch.frombuffer(memory, dtype=torch.uint8)

    def map_file(self, place: int, path: Path) -> None:
        """Make a file's bytes appear at its place.

        Raises:
            BadShardError: the file can't be opened or its size is not the expected one.
        """
        size = self._sizes[place]
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise BadShardError(f"{path}: can't be opened ({error.strerror})") from error
        try:
            n_found = os.fstat(descriptor).st_size
            if n_found != size:  # touching a page past the end of the file would end the process
                raise BadShardError(f"{path}: {n_found} bytes, should be {size}")
            address = _libc.mmap(
                self._address + self.offsets[place],
                size,
                mmap.PROT_READ,
                mmap.MAP_SHARED | _MAP_FIXED,
                descriptor,
                0,
            )
            if address == _MAP_FAILED:
                raise BadShardError(f"{path}: can't be mapped ({os.strerror(ctypes.get_errno())})")
        finally:
            os.close(descriptor)


def _aligned(address: int) -> int:
    """The next multiple of a large page."""
    return -(-address // _PAGE) * _PAGE
