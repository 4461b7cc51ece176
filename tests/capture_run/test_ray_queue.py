"""Which shard an actor gets: each is done once, whatever is lost, doubled or slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.capture_run.executors.queue import ShardQueue
from easysteer_data.errors import EngineError


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 11)), max_size=80))
def test_each_shard_counts_once_in_any_order_of_losses_and_copies(
    n_shards: int, events: list[tuple[int, int]]
) -> None:
    queue = ShardQueue(range(n_shards), n_retries=100, second_copy_after=1.5)
    running: list[int] = []
    done: list[int] = []
    for now_s, (event, chosen) in enumerate(events):
        if event == 0:
            number = queue.take(float(now_s))
            if number is not None:
                running.append(number)
        elif running:
            number = running.pop(chosen % len(running))
            if event == 1 and queue.finish(number, float(now_s)):
                done.append(number)
            elif event == 2:
                queue.lose(number, "gone")
    for now_s in range(1000, 2000):
        if queue.finished:
            break
        number = queue.take(float(now_s))
        if number is not None:
            running.append(number)
        if running and queue.finish(finished := running.pop(0), now_s + 0.5):
            done.append(finished)
    assert queue.finished
    assert sorted(done) == list(range(n_shards))


def test_a_shard_lost_too_often_ends_the_capture_with_the_last_reason() -> None:
    queue = ShardQueue([4], n_retries=2, second_copy_after=None)
    for _ in range(2):
        assert queue.take(0.0) == 4
        queue.lose(4, "died")
    assert queue.take(0.0) == 4
    with pytest.raises(EngineError, match="shard 4 was lost 3 times, the last time: out of memory"):
        queue.lose(4, "out of memory")


def test_a_slow_shard_is_copied_once_elsewhere_when_nothing_waits() -> None:
    queue = ShardQueue(range(5), n_retries=1, second_copy_after=3.0)
    for number in range(5):
        assert queue.take(0.0) == number
    for number, now_s in ((0, 1.0), (1, 1.0), (2, 1.2)):
        assert queue.finish(number, now_s)
    assert queue.take(2.9) is None
    assert queue.take(3.1, beside={3}) == 4
    assert queue.take(3.1, beside={4}) == 3
    assert queue.take(99.0) is None  # each has a second copy by now
    assert queue.finish(3, 5.0)
    assert not queue.finish(3, 6.0)
    queue.lose(4, "died")  # the other copy still runs
    assert queue.finish(4, 7.0)
    assert queue.finished
