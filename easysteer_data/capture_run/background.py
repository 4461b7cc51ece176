"""Work that threads of its own do while the engine runs on: bounded bytes waiting, errors at once.

Knows neither shards nor rows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from easysteer_data.cores import helper_pool, uninterrupted

T = TypeVar("T")


class Background(Generic[T]):
    """Hands items to a function in threads; a context that ends when all items are done.

    An exception of the function ends the threads, drops what waits, and is raised by the next call here, or
    on leaving the context. Where the context's own block raised, what waits is still done, and an exception
    of the function is only noted in the block's.

    Args:
        work: called with each item; items are begun in order.
        max_bytes: of the items that wait, and of those being worked on; one item may always wait, and one
            always be worked on.
        n_threads: items worked on at once.
    """

    def __init__(self, work: Callable[[T], None], max_bytes: int, n_threads: int = 1) -> None:
        self._work = work
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._n_waiting_bytes = 0
        self._n_working = 0
        self._n_working_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._n_threads = n_threads

    def __enter__(self) -> Self:
        self._pool = helper_pool(self._n_threads, "easysteer-data-writer")
        try:
            for _ in range(self._n_threads):
                self._pool.submit(self._run)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        uninterrupted(self._end)
        if self._error is None or self._error is error:
            return
        if error is None:
            raise self._error
        error.add_note(f"the writer failed as well: {self._error}")

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._pool.shutdown()

    def put(self, item: T, n_bytes: int) -> None:
        """Add an item; waits while too many bytes do. Raises what the function raised."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error is not None
                    or not self._waiting
                    or self._n_waiting_bytes + n_bytes <= self._max_bytes
                )
            )
            self._raise_error()
            self._waiting.append((item, n_bytes))
            self._n_waiting_bytes += n_bytes
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what the function raised, if it did."""
        with self._changed:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while self._work_on_one():
            pass

    def _work_on_one(self) -> bool:
        """Wait for an item and do it; whether there may be another."""
        with self._changed:
            self._changed.wait_for(self._may_begin_or_end)
            if not self._waiting:
                return False
            item, n_bytes = self._waiting.popleft()
            self._n_waiting_bytes -= n_bytes
            self._n_working += 1
            self._n_working_bytes += n_bytes
            self._changed.notify_all()
        try:
            self._work(item)
        except BaseException as error:  # raised again in the thread that puts
            with self._changed:
                if self._error is None:
                    self._error = error
                else:
                    self._error.add_note(f"another item failed as well: {error}")
                self._ended = True
                self._waiting.clear()
        finally:
            del item  # while waiting for the next one, this one's memory would stay
            with self._changed:
                self._n_working -= 1
                self._n_working_bytes -= n_bytes
                self._changed.notify_all()
        return True

    def _may_begin_or_end(self) -> bool:
        if not self._waiting:
            return self._ended
        n_bytes = self._waiting[0][1]
        return self._n_working == 0 or self._n_working_bytes + n_bytes <= self._max_bytes
