"""Large host tensors in huge pages, used again once nobody holds them: new memory costs time to touch."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque

import numpy as np
import torch

_LARGE = 8 * 2**20
_STEP = 2**21  # a huge page: sizes are rounded up to it, so that parts of nearly one size share memory
_SPARE = 1.5  # how much larger than asked for a block of memory may be


class HostMemory:
    """Gives out CPU tensors; the memory of large ones comes back when their last view is gone.

    What is not in use goes with this object.

    Args:
        max_bytes: memory that comes back is kept as far as this is not exceeded together with what is given
            out; more is given back to the system.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._given_out: dict[int, int] = {}  # bytes by identity
        self._free: list[mmap.mmap] = []
        # Memory comes back wherever its last view goes, also in a garbage collection while the lock is held.
        self._returned: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def limit(self, max_bytes: int) -> None:
        """Set what is kept at most, and give back what is more."""
        with self._lock:
            self._max_bytes = max_bytes
            self._make_room(0)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor."""
        n_bytes = torch.Size(shape).numel() * dtype.itemsize
        if n_bytes < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=dtype)
        memory = self._take(n_bytes)
        self._given_out[id(memory)] = len(memory)
        # The tensor and its views hold this array, and it the memory.
        array = np.frombuffer(memory, np.uint8, n_bytes)
        weakref.finalize(array, self._come_back, memory).atexit = False
        return torch.from_numpy(array).view(dtype).view(shape)

    def _come_back(self, memory: mmap.mmap) -> None:
        del self._given_out[id(memory)]
        if self._in_use + len(memory) <= self._max_bytes:
            self._returned.append(memory)

    @property
    def _in_use(self) -> int:
        """Bytes given out and kept. Threads that ask at once may each keep one piece too many."""
        return sum(len(m) for m in [*self._free, *self._returned]) + sum([*self._given_out.values()])

    def _make_room(self, n_bytes: int) -> None:
        """Give back what is kept, the largest first, until so much more may be given out."""
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort(key=len)
        while self._free and self._in_use + n_bytes > self._max_bytes:
            self._free.pop()

    def _take(self, n_bytes: int) -> mmap.mmap:
        size = -(-n_bytes // _STEP) * _STEP
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [m for m in self._free if n_bytes <= len(m) <= _SPARE * n_bytes]
            if fitting:
                memory = min(fitting, key=len)
                self._free.remove(memory)
                return memory
            self._make_room(size)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
