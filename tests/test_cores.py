"""Helper threads use one core each, and leave torch as it was for all others."""

from __future__ import annotations

import os
import sys
from threading import Barrier, Thread

import pytest
import torch

from easysteer_data.cores import helper_pool, shared_pool, short_turns, uninterrupted


def of_a_new_thread() -> int:
    found: list[int] = []
    thread = Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_torch_uses_one_core_in_each_helper_and_as_many_as_before_elsewhere() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with helper_pool(4, "helper") as pool:
            together = Barrier(4)

            def n_threads(_: int) -> int:
                together.wait()  # so that each call is in another thread
                torch.randn(200_000).sum()
                return torch.get_num_threads()

            assert list(pool.map(n_threads, range(4))) == [1, 1, 1, 1]
            assert torch.get_num_threads() == 3
            assert of_a_new_thread() == 3
            with pool.submit(helper_pool, 2, "helper of a helper").result():
                assert of_a_new_thread() == 3
    finally:
        torch.set_num_threads(before)


def test_a_shared_pool_is_made_once_and_anew_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = shared_pool(2, "shared")
    assert shared_pool(2, "shared") is pool
    assert shared_pool(2, "another") is not pool
    assert pool.submit(torch.get_num_threads).result() == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert shared_pool(2, "shared") is not pool


def test_an_interrupt_waits_for_the_end() -> None:
    calls = []

    def action() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(action)
    assert calls == [0, 1, 2]
    uninterrupted(lambda: calls.append(3))
    assert calls == [0, 1, 2, 3]


def test_turns_are_short_until_the_last_that_wants_them_has_ended() -> None:
    before = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    with first:
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_turns_that_are_shorter_already_stay_as_they_are() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        shorter = sys.getswitchinterval()
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(shorter, rel=0.02)
        assert sys.getswitchinterval() == pytest.approx(shorter, rel=0.02)
    finally:
        sys.setswitchinterval(before)
