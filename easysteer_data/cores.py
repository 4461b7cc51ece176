"""How many threads may copy, sum and write rows beside an engine."""

from __future__ import annotations

import os


def helper_threads() -> int:
    """Half of the cores that this process may use, and 8 at most: the others are the engine's."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, allowed // 2))
