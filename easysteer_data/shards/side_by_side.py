"""Does independent work of shards on several cores. Knows no rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from threading import Lock
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from easysteer_data.cores import helper_pool, helper_threads, uninterrupted

P = ParamSpec("P")
R = TypeVar("R")
N_THREADS = helper_threads()
_making = Lock()


class SideBySide:
    """A context in which functions run beside the caller; at its end none of them goes on, however it ends.

    All contexts share the threads, so that shards written at the same time take no more cores than one. A
    function must not wait for another that is submitted.
    """

    def __init__(self) -> None:
        with _making:
            self._pool = _pool(N_THREADS, os.getpid())
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._futures:
            future.cancel()
        uninterrupted(lambda: wait(self._futures))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called, after those before it; the future gives what it returns or raises."""
        future = self._pool.submit(function, *args, **kwargs)
        self._futures.append(future)
        return future


@cache
def _pool(n_threads: int, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has no threads
    return helper_pool(n_threads, "easysteer-data-layer")
