"""Corpus in, shards of activations out: `python -m pipelines.capture experiment=demo`."""

from __future__ import annotations

import sys
from pathlib import Path

from easysteer_data.capture_run import capture_corpus
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage


def stage(settings: ExperimentSettings) -> None:
    """Capture the experiment's corpus, unless a finished run of the same settings is there."""
    outcome = capture_corpus(settings, Path(settings.out) / "capture")
    sys.stdout.write(f"{outcome}\n")


def main() -> None:
    """Entry point."""
    run_stage("capture", stage)


if __name__ == "__main__":
    main()
