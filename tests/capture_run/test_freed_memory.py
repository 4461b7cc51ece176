"""Memory that was freed between what is still in use goes back to the system."""

from __future__ import annotations

import resource
from pathlib import Path

from easysteer_data.capture_run.freed_memory import return_freed_memory

BLOCK_BYTES = 100_000  # below what glibc maps by itself
N_BLOCKS = 1000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_holes_between_blocks_in_use_are_given_back() -> None:
    blocks = [b"x" * BLOCK_BYTES for _ in range(N_BLOCKS)]
    kept = blocks[::20]
    full = resident_bytes()
    blocks.clear()
    return_freed_memory()
    assert full - resident_bytes() > 0.8 * N_BLOCKS * BLOCK_BYTES
    assert kept == [b"x" * BLOCK_BYTES] * len(kept)
