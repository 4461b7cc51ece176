"""A run of activations in, how far its rows are from Hugging Face's out.

`python -m pipelines.verify experiment=demo`
"""

from __future__ import annotations

import sys
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.settings import ExperimentSettings
from easysteer_data.verify import verify_run

from .stage import run_stage


def stage(settings: ExperimentSettings) -> None:
    """Compare sampled prompts of the experiment's captured run with Hugging Face; an error if they differ."""
    verify = settings.verify
    run = Path(settings.out) / "capture" if verify.run is None else Path(verify.run)
    report = verify_run(run, model=settings.model.path, n=verify.n, seed=verify.seed)
    sys.stdout.write(f"{report.table()}\n")
    sys.stdout.flush()
    if not report.passed:
        raise RunError(report.failure)


def main() -> None:
    """Entry point."""
    run_stage("verify", stage)


if __name__ == "__main__":
    main()
