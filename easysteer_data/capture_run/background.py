"""Work that a thread of its own does while the engine runs on: bounded bytes waiting, errors at once.

Knows neither shards nor rows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Hands items one by one to a function in a thread; a context that ends when all items are done.

    An exception of the function ends the thread, drops what waits, and is raised by the next call here, or
    on leaving the context. Where the context's own block raised, what waits is still done, and an exception
    of the function is only noted in the block's.

    Args:
        work: called with each item, in order.
        max_bytes: of the items that wait, beside the one being worked on; one item may always wait.
    """

    def __init__(self, work: Callable[[T], None], max_bytes: int) -> None:
        self._work = work
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._n_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="easysteer-data-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is None or self._error is error:
            return
        if error is None:
            raise self._error
        error.add_note(f"the writer failed as well: {self._error}")

    def put(self, item: T, n_bytes: int) -> None:
        """Add an item; waits while too many bytes do. Raises what the function raised."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error is not None or not self._waiting or self._n_bytes + n_bytes <= self._max_bytes
                )
            )
            self._raise_error()
            self._waiting.append((item, n_bytes))
            self._n_bytes += n_bytes
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what the function raised, if it did."""
        with self._changed:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._ended)
                if not self._waiting:
                    return
                item, n_bytes = self._waiting.popleft()
                self._n_bytes -= n_bytes
                self._changed.notify_all()
            try:
                self._work(item)
            except BaseException as error:  # raised again in the thread that puts
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            del item  # while waiting for the next one, this one's memory would stay
