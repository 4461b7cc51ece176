"""Work beside the engine: in order, bounded, and an error of it stops the run at once."""

from __future__ import annotations

import threading

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
