"""Memory of this process and all that it has started, sampled while something runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_EVERY_S = 0.02


def used_bytes() -> int:
    """Memory of their own of all these processes, and what is shared, counted once.

    Shared memory of one is taken to be that of the others: the largest of them counts.
    """
    own, shared = 0, [0]
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        sizes = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (x.partition(":") for x in lines)
            if "Rss" in name
        }
        own += sizes.get("RssAnon", 0)
        shared.append(sizes.get("RssShmem", 0))
    return own + max(shared)


@dataclass
class Peak:
    """The most that was seen."""

    n_bytes: int = 0


@contextmanager
def sampled() -> Iterator[Peak]:
    """Sample the memory while the block runs."""
    peak, ended = Peak(used_bytes()), threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            peak.n_bytes = max(peak.n_bytes, used_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak.n_bytes = max(peak.n_bytes, used_bytes())
