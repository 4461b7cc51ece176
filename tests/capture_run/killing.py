"""A capture stage in a process of its own that can be killed at any moment. Started from a server that has
imported vLLM already, so that a start costs an engine and no imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.capture_run.preloaded"])


def start(arguments: Sequence[str], log: Path) -> ForkServerProcess:
    """Start `python -m pipelines.capture` with these arguments; what it prints goes to the log."""
    process = _context.Process(target=_run, args=(list(arguments), str(log)))
    process.start()
    return process


def _run(arguments: list[str], log: str) -> None:
    os.setsid()  # a process group of its own, as a terminal gives a command
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["capture", *arguments]
    from pipelines.capture import main

    main()


def wait_until(condition: Callable[[], bool], process: ForkServerProcess, timeout_s: float = 120) -> None:
    """Wait for the condition or the process's end."""
    end_s = time.monotonic() + timeout_s
    while not condition() and process.is_alive():
        if time.monotonic() > end_s:
            process.kill()
            raise TimeoutError("the capture did not get that far")
        time.sleep(0.002)


def n_committed(run: Path) -> int:
    """Shards that the journal says are done."""
    journal = run / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0
