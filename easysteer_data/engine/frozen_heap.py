"""Keeps Python's garbage collector from searching everything again and again while a capture runs."""

from __future__ import annotations

import gc
from threading import Lock
from types import TracebackType
from typing import ClassVar, Self

# Fewer objects than this may have been frozen by Python itself, as 3.12 does at its start.
_OF_PYTHON = 10_000


class FrozenHeap:
    """A context in which full collections leave out what was there before.

    With vLLM imported that is some 700,000 objects, and a search through them stops this process for half a
    second, while rows may be waited for. Objects made in the block are collected as usual, the others again
    behind it. A heap that others have frozen stays as it is, as by an engine in this process at its start.

    Blocks may overlap.

    Attributes:
        is_of_others: whether one was found frozen in this process. To count what is frozen takes a tenth of a
            second where it is much: it is not done again before `look_again`.
    """

    is_of_others: ClassVar[bool] = False
    _lock: ClassVar[Lock] = Lock()
    _n_ours: ClassVar[int] = 0  # blocks that have frozen it

    def __init__(self) -> None:
        self._frozen = False

    @classmethod
    def look_again(cls) -> None:
        """Count anew: others may have let go, as an engine that was closed."""
        cls.is_of_others = False

    def __enter__(self) -> Self:
        with FrozenHeap._lock:
            if not FrozenHeap._n_ours and not FrozenHeap.is_of_others:
                FrozenHeap.is_of_others = gc.get_freeze_count() >= _OF_PYTHON
            self._frozen = not FrozenHeap.is_of_others
            if self._frozen:
                FrozenHeap._n_ours += 1
                gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with FrozenHeap._lock:
            if self._frozen:
                FrozenHeap._n_ours -= 1
                if not FrozenHeap._n_ours:
                    gc.unfreeze()
