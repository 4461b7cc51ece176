"""What this machine has to spare."""

from __future__ import annotations

import sys
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int:
    """Memory that can be taken without swapping, page cache given back; boundless where nobody tells."""
    if not _MEMINFO.is_file():
        return sys.maxsize
    values = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(values["MemAvailable"].split()[0]) * 1024
