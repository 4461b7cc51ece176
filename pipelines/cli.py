"""The console script: `easysteer-data STAGE [overrides]` runs a stage from any folder."""

from __future__ import annotations

import sys

from . import capture, fit_vector, inspect, merge, report, steer, train_probe, verify

STAGES = {
    "capture": capture.main,
    "fit_vector": fit_vector.main,
    "inspect": inspect.main,
    "merge": merge.main,
    "report": report.main,
    "steer": steer.main,
    "train_probe": train_probe.main,
    "verify": verify.main,
}


def main() -> None:
    """Run the stage that the first argument names."""
    names = ", ".join(STAGES)
    if len(sys.argv) < 2 or sys.argv[1] not in STAGES:
        asked = f"unknown stage {sys.argv[1]!r}; " if len(sys.argv) > 1 else ""
        sys.stderr.write(f"{asked}usage: easysteer-data STAGE [key=value ...]   stages: {names}\n")
        raise SystemExit(2)
    stage = sys.argv.pop(1)
    STAGES[stage]()
