"""Keeps Python's garbage collector from searching everything again and again while a capture runs."""

from __future__ import annotations

import gc
from types import TracebackType
from typing import ClassVar, Self

# Fewer objects than this may have been frozen by Python itself, as 3.12 does at its start.
_OF_PYTHON = 10_000


class FrozenHeap:
    """A context in which full collections leave out what was there before.

    With vLLM imported that is some 700,000 objects, and a search through them stops this process for half a
    second, while rows may be waited for. Objects made in the block are collected as usual, the others again
    behind it. A heap that others have frozen stays as it is, as by an engine in this process at its start.

    Attributes:
        is_of_others: whether one was found frozen in this process. It is not looked at again: to count what
            is frozen takes a tenth of a second where it is much.
    """

    is_of_others: ClassVar[bool] = False

    def __init__(self) -> None:
        self._frozen = False

    def __enter__(self) -> Self:
        if not FrozenHeap.is_of_others:
            FrozenHeap.is_of_others = gc.get_freeze_count() >= _OF_PYTHON
        self._frozen = not FrozenHeap.is_of_others
        if self._frozen:
            gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frozen:
            gc.unfreeze()
