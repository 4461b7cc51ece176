"""Does independent work of shards on several cores. Knows no rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from easysteer_data.cores import helper_pool, helper_threads

T = TypeVar("T")
R = TypeVar("R")
N_THREADS = helper_threads()


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item and what the work gives for it, in order; raises what the first one's raised that failed.

    All callers share the threads, so that shards written at the same time take no more cores than one. The
    work must not call this itself. None of it goes on once this has ended, however it did.
    """
    items = list(items)
    pool = _pool(N_THREADS, os.getpid())
    futures = [pool.submit(work, item) for item in items]
    try:
        for item, future in zip(items, futures, strict=True):
            yield item, future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@cache
def _pool(n_threads: int, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has no threads
    return helper_pool(n_threads, "easysteer-data-layer")
