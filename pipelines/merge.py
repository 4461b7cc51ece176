"""Slices of a captured run in, the finished run out: `python -m pipelines.merge experiment=demo`.

Reads no corpus and no model. `run=PATH` names another run folder, beside which `PATH.parts` lies.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from easysteer_data.capture_run import merge_slices
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Join the slices of the experiment's run; an error that names what is missing, if something is."""
    run = run_folder(settings)
    manifest = merge_slices(run)
    sys.stdout.write(f"{run}: {len(manifest.shards)} shards, {manifest.n_rows} rows a layer\n")
    return {"run": run, "shards": len(manifest.shards), "rows": manifest.n_rows}


def main() -> None:
    """Entry point."""
    run_stage("merge", stage)


if __name__ == "__main__":
    main()
