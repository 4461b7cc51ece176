"""The jobs of a Hydra multirun: a folder for each, named by what was swept; one table of all at the end.

Knows the command line, no stage.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from easysteer_data.run_folders import first_run
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards.durable import make_folder, write_durably

_PARSER = OverridesParser.create()


def settings_of_job(settings: ExperimentSettings) -> ExperimentSettings:
    """In a multirun, give the job a folder of its own inside OUT, and all jobs one folder of captures.

    A stage that reads a run takes the one of the experiment whose swept values are the most of the job's
    own: after `capture -m model=a,b`, `train_probe -m model=a,b probe.C=1,10` reads two runs, each twice.
    """
    swept = _swept_values()
    if not swept:
        return settings
    out = Path(settings.out)
    folders = [out / folder_name(part) for n in range(len(swept), -1, -1) for part in combinations(swept, n)]
    found = first_run(folders) if settings.run is None else Path(settings.run)
    return replace(
        settings,
        name=f"{settings.name} {folder_name(swept)}",
        out=str(folders[0]),
        captures=settings.captures or str(out / "captures"),
        run=None if found is None else str(found),
    )


def folder_name(values: Sequence[str]) -> str:
    """A folder's name for a job's overrides, "." for none."""
    return ",".join(value.replace("/", "_") for value in values) or "."


def _swept_values() -> tuple[str, ...]:
    """The job's overrides of what the command line sweeps, as "model=a"; empty outside a multirun."""
    config = HydraConfig.get()
    if config.mode != RunMode.MULTIRUN:
        return ()
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    swept = {
        override.key_or_group
        for override in _PARSER.parse_overrides(arguments)
        if override.is_sweep_override()
    }
    task = _PARSER.parse_overrides(list(config.overrides.task))
    return tuple(
        f"{override.key_or_group}={override.get_value_element_as_str()}"
        for override in task
        if override.key_or_group in swept
    )


@dataclass
class JobTable:
    """What the jobs came to.

    Attributes:
        rows: job's name -> column -> value.
        failures: job's name -> error.
        folder: of the sweep, which the jobs' folders lie in.
    """

    rows: dict[str, Mapping[str, object]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)

    def write_csv(self) -> Path:
        """Write summary.csv to the sweep's folder, a line a job, its error in the last column."""
        columns = self._columns
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["job", *columns, "error"])
        for job, row in self.rows.items():
            writer.writerow([job, *(row.get(name, "") for name in columns), ""])
        for job, error in self.failures.items():
            writer.writerow([job, *[""] * len(columns), error])
        make_folder(self.folder)
        path = self.folder / "summary.csv"
        write_durably(path, text.getvalue().encode())
        return path

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def __str__(self) -> str:
        columns = self._columns
        lines = [["job", *columns]]
        lines += [[job, *(str(row.get(name, "")) for name in columns)] for job, row in self.rows.items()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        failed = [f"FAILED {job}: {error}" for job, error in self.failures.items()]
        return "\n".join([*(text if self.rows else []), *failed])
