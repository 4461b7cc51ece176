"""Does independent work of one shard on several cores. Knows no rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def _n_cores() -> int:
    """Cores that this process may use, by its affinity and by what limits its other threads."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return min(allowed, int(threads)) if threads.isdigit() else allowed


# Half of the cores are left to the engine and to whoever collects the rows.
N_THREADS = max(1, min(8, _n_cores() // 2))


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item and what the work gives for it, in order; raises what the first one's raised that failed."""
    items = list(items)
    if N_THREADS == 1:
        yield from ((item, work(item)) for item in items)
        return
    with ThreadPoolExecutor(N_THREADS, "easysteer-data-layer") as pool:
        yield from zip(items, pool.map(work, items), strict=True)
