"""Work beside the engine: in order, bounded, and an error of it stops the run at once."""

from __future__ import annotations

import threading
import time

import pytest

from easysteer_data.capture_run.background import Background


def test_items_are_done_in_order_before_the_context_ends() -> None:
    done: list[int] = []
    with Background(done.append, 10) as background:
        for item in range(100):
            background.put(item, 3)
    assert done == list(range(100))


def test_putting_waits_while_too_many_bytes_wait() -> None:
    gate, done, put = threading.Semaphore(0), [], []

    def work(item: int) -> None:
        gate.acquire()
        done.append(item)

    with Background(work, 10) as background:

        def feed() -> None:
            for item in range(6):
                background.put(item, 4)
                put.append(item)

        feeder = threading.Thread(target=feed)
        feeder.start()
        feeder.join(timeout=0.5)
        # One is being worked on, two of 4 bytes wait; the next does not fit 10.
        assert (put, done) == ([0, 1, 2], [])
        for _ in range(6):
            gate.release()
        feeder.join()
    assert done == list(range(6))


def test_one_item_beyond_the_bound_still_goes_through() -> None:
    done: list[str] = []
    with Background(done.append, 1) as background:
        background.put("big", 1000)
        background.put("bigger", 2000)
    assert done == ["big", "bigger"]


def test_as_many_items_are_worked_on_at_once_as_there_are_threads_and_bytes_for_them() -> None:
    gate, begun, changed = threading.Semaphore(0), [], threading.Condition()

    def work(item: str) -> None:
        with changed:
            begun.append(item)
            changed.notify_all()
        gate.acquire()

    with Background(work, 10, n_threads=3) as background:
        try:
            for item, n_bytes in (("a", 4), ("b", 4), ("large", 9), ("c", 1)):
                background.put(item, n_bytes)
            with changed:
                changed.wait_for(lambda: len(begun) == 2, timeout=10)
                assert not changed.wait_for(lambda: len(begun) > 2, timeout=0.3)
            assert sorted(begun) == ["a", "b"]
            gate.release(2)  # both are done: the large one has room, and the small one beside it
            with changed:
                assert changed.wait_for(lambda: len(begun) == 4, timeout=10)
        finally:
            gate.release(4)


def test_when_one_of_several_fails_those_beside_it_are_done_and_no_further_one_is_begun() -> None:
    failed, done = threading.Event(), []

    def work(item: int) -> None:
        if item == 1:
            failed.set()
            raise OSError("no space")
        assert failed.wait(10)
        time.sleep(0.3)  # until the error is noted
        done.append(item)

    with pytest.raises(OSError, match="no space"), Background(work, 2, n_threads=2) as background:
        put_all(background, range(6), 1)
    assert done == [0]


def test_of_two_that_fail_at_once_the_second_is_told_as_well() -> None:
    together = threading.Barrier(2)

    def work(item: int) -> None:
        together.wait(10)
        time.sleep(0.3 * item)
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 0") as raised, Background(work, 2, n_threads=2) as background:
        put_all(background, range(2), 1)
    assert raised.value.__notes__ == ["another item failed as well: item 1"]


def put_all(background: Background[int], items: range, n_bytes: int) -> None:
    for item in items:
        background.put(item, n_bytes)


def test_an_error_of_the_work_is_raised_where_items_are_put_and_drops_what_waits() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 1:
            raise OSError("no space")
        done.append(item)

    with pytest.raises(OSError, match="no space"), Background(work, 100) as background:
        put_all(background, range(1000), 60)
    assert done == [0]


def put_and_fail(background: Background[int], error: BaseException) -> None:
    put_all(background, range(2), 1)
    raise error


def test_an_error_of_the_block_lets_waiting_items_finish() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt), Background(done.append, 100) as background:
        put_and_fail(background, KeyboardInterrupt())
    assert done == [0, 1]


def test_both_errors_are_told() -> None:
    gate = threading.Event()

    def work(_item: int) -> None:
        gate.wait(10)
        raise OSError("no space")

    error = ValueError("engine")
    threading.Timer(0.3, gate.set).start()
    with pytest.raises(ValueError, match="engine"), Background(work, 100) as background:
        put_and_fail(background, error)
    assert error.__notes__ == ["the writer failed as well: no space"]
