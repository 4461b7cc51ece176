"""Which shard is captured next, how often it was lost, and whether a slow one gets a second try elsewhere.

Knows numbers and times, no actor.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from statistics import median

from easysteer_data.errors import EngineError

_MIN_TIMED = 3  # shards whose times make a median


class ShardQueue:
    """Shards that wait, run and are done; each is done once, however many copies of it run.

    Args:
        numbers: the shards, in the order in which they are handed out.
        n_retries: how often one may be lost and handed out again.
        second_copy_after: a shard that runs longer than so many times the median, when none waits any more,
            is handed out a second time; None = never.
    """

    def __init__(self, numbers: Iterable[int], n_retries: int, second_copy_after: float | None) -> None:
        self._waiting = deque(numbers)
        self._left = set(self._waiting)
        self._running: dict[int, list[float]] = {}  # number -> when each of its copies began
        self._n_lost: Counter[int] = Counter()
        self._n_retries = n_retries
        self._second_copy_after = second_copy_after
        self._times_s: list[float] = []

    @property
    def n_waiting(self) -> int:
        """Shards that nobody captures."""
        return len(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether every shard is done."""
        return not self._left

    def take(self, now_s: float, beside: Collection[int] = ()) -> int | None:
        """The next shard for an actor that is capturing those of `beside` already; None = nothing to do."""
        if self._waiting:
            number = self._waiting.popleft()
        else:
            slow = [number for number in self._slow(now_s) if number not in beside]
            if not slow:
                return None
            number = slow[0]
        self._running.setdefault(number, []).append(now_s)
        return number

    def finish(self, number: int, now_s: float) -> bool:
        """Note that a copy of a shard is there; whether it is the first one, which counts."""
        if number not in self._left:
            return False
        self._left.discard(number)
        self._times_s.append(now_s - self._running.pop(number)[0])
        if number in self._waiting:  # its first actor was given up too early
            self._waiting.remove(number)
        return True

    def lose(self, number: int, why: str) -> None:
        """Note that a copy of a shard will not come; it waits again unless another copy runs.

        Raises:
            EngineError: it was lost too often; the message ends with `why`.
        """
        if number not in self._left:
            return
        self._n_lost[number] += 1
        if self._n_lost[number] > self._n_retries:
            raise EngineError(f"shard {number} was lost {self._n_lost[number]} times, the last time: {why}")
        copies = self._running[number]
        copies.pop()
        if not copies:
            del self._running[number]
            self._waiting.appendleft(number)

    def _slow(self, now_s: float) -> list[int]:
        """Shards of which one copy runs for too long, the longest first."""
        if self._second_copy_after is None or len(self._times_s) < _MIN_TIMED:
            return []
        limit_s = self._second_copy_after * median(self._times_s)
        began = [(copies[0], number) for number, copies in self._running.items() if len(copies) == 1]
        return [number for began_s, number in sorted(began) if now_s - began_s > limit_s]
