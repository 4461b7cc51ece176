"""The section on a sweep: its jobs as a table. Reads summary.csv, knows no job."""

from __future__ import annotations

import csv
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.report_page.content import Section


def sweep_section(path: Path) -> Section:
    """Build it from a sweep's summary.csv.

    Raises:
        RunError: the file can't be read as a table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file, strict=True))
    except (OSError, UnicodeError, csv.Error) as error:
        raise RunError(f"{path}: can't be read as a table ({error}); run the sweep again") from error
    if not lines:
        raise RunError(f"{path}: is empty; run the sweep again")
    names, *jobs = lines
    return Section("sweep", "Sweep", "sweep.html", {"names": names, "jobs": jobs})
