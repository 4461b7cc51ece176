"""Does independent work of shards on several cores. Knows no rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from threading import Lock
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from easysteer_data.cores import helper_threads, shared_pool, uninterrupted

P = ParamSpec("P")
R = TypeVar("R")
N_THREADS = helper_threads()


class SideBySide:
    """A context in which functions run beside the caller; at its end none of them goes on, however it ends.

    All contexts share the threads, so that shards written at the same time take no more cores than one. A
    function must not wait for another that is submitted, but may submit one.
    """

    def __init__(self) -> None:
        self._pool = shared_pool(N_THREADS, "easysteer-data-layer")
        self._futures: list[Future[Any]] = []
        self._ended = False
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Begin nothing more, and wait for what has begun."""
        with self._lock:
            self._ended = True
        for future in self._futures:
            future.cancel()
        uninterrupted(lambda: wait(self._futures))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called, after those before it; the future gives what it returns or raises.

        Raises:
            CancelledError: the context has ended.
        """
        with self._lock:
            if self._ended:
                raise CancelledError
            future = self._pool.submit(function, *args, **kwargs)
            self._futures.append(future)
        return future
