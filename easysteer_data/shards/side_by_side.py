"""Does independent work of one shard on several cores. Knows no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from easysteer_data.cores import helper_pool, helper_threads

T = TypeVar("T")
R = TypeVar("R")
N_THREADS = helper_threads()


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item and what the work gives for it, in order; raises what the first one's raised that failed."""
    items = list(items)
    with helper_pool(N_THREADS, "easysteer-data-layer") as pool:
        yield from zip(items, pool.map(work, items), strict=True)
