"""This process among those that train: which one it is, and how much memory it may take."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch import distributed

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def ranks() -> tuple[int, int]:
    """Number of processes that share every epoch, and this one's number."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


def available_bytes() -> int:
    """Memory that each local rank can take without swapping, page cache given back; boundless if unknown.

    That is its share of what the machine has left, or of what is left to the control group (version 2) that a
    container or a job scheduler has put it into.
    """
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks()[0]))
    return min(_of_machine(), _of_group()) // max(n_local, 1)


def _of_machine() -> int:
    if not _MEMINFO.is_file():
        return sys.maxsize
    values = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(values["MemAvailable"].split()[0]) * 1024


def _of_group() -> int:
    """The least that a group above this process, or its own, has left."""
    if not _OWN_GROUP.is_file():
        return sys.maxsize
    own = next((line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::")), "/")
    group = _GROUPS / own.lstrip("/")
    above = [one for one in (group, *group.parents) if one.is_relative_to(_GROUPS)]
    return min(map(_left, above), default=sys.maxsize)


def _left(group: Path) -> int:
    limit, used, parts = (group / name for name in ("memory.max", "memory.current", "memory.stat"))
    if not limit.is_file() or (most := limit.read_text().strip()) == "max":
        return sys.maxsize
    stat = dict(line.split() for line in parts.read_text().splitlines())
    return int(most) - int(used.read_text()) + int(stat.get("inactive_file", 0))
