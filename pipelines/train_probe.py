"""A run of activations in, a probe of every layer and its figures on held-out groups out.

`python -m pipelines.train_probe experiment=demo`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.probes import fit_linear_probe
from easysteer_data.report import table, write_report
from easysteer_data.run_folders import run_to_serve
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Train a logistic probe on the experiment's captured run; print and write the figures."""
    out = Path(settings.out)
    data, probe = settings.data, settings.probe
    datamodule = ActivationDataModule(run_to_serve(settings), **data.arguments())
    report = fit_linear_probe(
        datamodule,
        C=probe.C,
        solver=probe.solver,
        max_epochs=probe.max_epochs,
        progress=settings.progress,
        weights=out / "probe.safetensors",
    )
    write_report(report, out)
    sys.stdout.write(f"{table(report)}\n\nwritten: {out}/report.json, report.png, probe.safetensors\n")
    return {"best layer": report.best_layer, "test AUROC": f"{report.test_auroc:.3f}"}


def main() -> None:
    """Entry point."""
    run_stage("train_probe", stage)


if __name__ == "__main__":
    main()
