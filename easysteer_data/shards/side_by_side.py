"""Does independent work of shards on several cores. Knows no rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from easysteer_data.cores import helper_threads, shared_pool, uninterrupted

P = ParamSpec("P")
R = TypeVar("R")
N_THREADS = helper_threads()


class SideBySide:
    """Runs functions beside the caller, until it is closed.

    All of them share the threads, so that shards written at the same time take no more cores than one. A
    function must not wait for another that is submitted.
    """

    def __init__(self) -> None:
        self._pool = shared_pool(N_THREADS, "easysteer-data-layer")
        self._futures: list[Future[Any]] = []
        self._is_closed = False
        self._lock = Lock()

    def close(self) -> None:
        """Begin nothing more, and wait for what has begun."""
        with self._lock:
            self._is_closed = True
        for future in self._futures:
            future.cancel()
        uninterrupted(lambda: wait(self._futures))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called, after those before it; the future gives what it returns or raises.

        Raises:
            CancelledError: it is closed.
        """
        with self._lock:
            if self._is_closed:
                raise CancelledError
            future = self._pool.submit(function, *args, **kwargs)
            self._futures.append(future)
        return future
