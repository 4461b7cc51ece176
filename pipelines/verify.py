"""A run of activations in, how far its rows are from Hugging Face's out.

`python -m pipelines.verify experiment=demo`, or `run=PATH` for any run that `model.path` made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from easysteer_data.errors import RunError
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings
from easysteer_data.verify import verify_run

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Compare sampled prompts of the experiment's captured run with Hugging Face; an error if they differ."""
    verify = settings.verify
    report = verify_run(run_folder(settings), model=settings.model.path, n=verify.n, seed=verify.seed)
    sys.stdout.write(f"{report.table()}\n")
    sys.stdout.flush()
    if not report.passed:
        raise RunError(report.failure)
    return {"verify": "passed"}


def main() -> None:
    """Entry point."""
    run_stage("verify", stage)


if __name__ == "__main__":
    main()
