"""Does independent work of one shard on several cores. Knows no rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Half of the cores are left to the engine and to whoever collects the rows.
N_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> dict[T, R]:
    """Item -> what the work gives for it, in order; raises what the first item's work raised that failed."""
    items = list(items)
    if N_THREADS == 1:
        return {item: work(item) for item in items}
    with ThreadPoolExecutor(N_THREADS, "easysteer-data-layer") as pool:
        return dict(zip(items, pool.map(work, items), strict=True))
