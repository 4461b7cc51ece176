"""Threads that copy, sum and write rows beside an engine: how many, each on one core, taking short turns."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Barrier, Lock, Thread

import torch

_TURN_S = 0.0005

_making = Lock()
_turning = Lock()
_long_turns: list[float] = []  # what the interpreter had before, once for each that wants short turns


def helper_threads() -> int:
    """Half of the cores that this process may use, or all but four: those are the engine's. 16 at most."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(16, max(allowed // 2, allowed - 4)))


def helper_pool(n_threads: int, name: str) -> ThreadPoolExecutor:
    """Threads in each of which torch uses one core.

    By itself torch would use all cores for an operation of each thread, so that many times as many threads as
    there are cores wait for each other.

    Args:
        n_threads: how many; all are started.
        name: how their names begin.
    """
    pool = ThreadPoolExecutor(n_threads, name)
    all_there = Barrier(n_threads)

    def begin() -> None:
        torch.get_num_threads()  # the first call takes over what the process has, later ones do not
        torch.set_num_threads(1)
        all_there.wait()

    # The number is the calling thread's own, and what threads that begin later are given. New threads look at
    # it and set it back.
    of_process: list[int] = []
    _in_a_new_thread(lambda: of_process.append(torch.get_num_threads()))
    for begun in [pool.submit(begin) for _ in range(n_threads)]:
        begun.result()
    _in_a_new_thread(lambda: torch.set_num_threads(of_process[0]))
    return pool


def shared_pool(n_threads: int, name: str) -> ThreadPoolExecutor:
    """A helper pool of this name that all share and nobody shuts down; a forked process has its own."""
    with _making:
        return _pool(n_threads, name, os.getpid())


@cache
def _pool(n_threads: int, name: str, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has no threads
    return helper_pool(n_threads, name)


@contextmanager
def short_turns() -> Iterator[None]:
    """A block in which a thread that wants the interpreter has it within half a millisecond.

    By itself one that runs Python may keep it for 5 ms, which those that come back from a copy, a hash or a
    file then wait: longer than many of these take. It is of the whole process; blocks may overlap.
    """
    with _turning:
        _long_turns.append(_long_turns[0] if _long_turns else sys.getswitchinterval())
        sys.setswitchinterval(min(_TURN_S, _long_turns[0]))
    try:
        yield
    finally:
        with _turning:
            before = _long_turns.pop()
            if not _long_turns:
                sys.setswitchinterval(before)


def uninterrupted(action: Callable[[], object]) -> None:
    """Call it again until it has ended without Ctrl-C, which is raised then if it came meanwhile."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            action()
            break
        except KeyboardInterrupt as came:
            interrupt = came
    if interrupt is not None:
        raise interrupt


def _in_a_new_thread(action: Callable[[], object]) -> None:
    thread = Thread(target=action)
    thread.start()
    thread.join()
