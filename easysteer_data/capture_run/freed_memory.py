"""Hands memory that was freed back to the system, where the C library would keep it. Knows no rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> None:
    """Give whole free pages of the heap back; takes milliseconds, and does nothing without glibc.

    glibc gives back by itself what is free at a heap's end alone. The rows of a shard lie between what the
    engine allocates for longer: each shard would leave holes that the next one does not quite fit.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim
