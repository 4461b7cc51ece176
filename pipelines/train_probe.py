"""A run of activations in, a probe of every layer and its figures on held-out groups out.

`python -m pipelines.train_probe experiment=demo`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.probes import ProbeReport, fit_probe, make_logger, save_fitted
from easysteer_data.report import table, write_report
from easysteer_data.run_folders import run_to_serve
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage

# Kinds that are trained in epochs.
_IN_EPOCHS = ("mlp", "attention_pooled")


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Train a probe on the experiment's captured run; print and write the figures."""
    out = Path(settings.out)
    data, probe = settings.data, settings.probe
    in_epochs = probe.kind in _IN_EPOCHS or (probe.kind == "logistic" and probe.solver == "adam")
    logger = make_logger(settings.logger, out, settings.name, in_epochs)
    datamodule = ActivationDataModule(run_to_serve(settings), **data.arguments())
    fitted = fit_probe(datamodule, probe, logger=logger, progress=settings.progress)
    write_report(fitted.report, out)  # makes the folder
    save_fitted(fitted, out / "probe.safetensors")
    written = f"{out}/report.json, report.png, probe.safetensors"
    sys.stdout.write(f"{table(fitted.report)}\n\nwritten: {written}\n")
    return _summary(fitted.report)


def _summary(report: ProbeReport) -> Mapping[str, object]:
    """Figures of the best layer with their intervals, for a table of several jobs."""
    names = ("auroc", "accuracy", "ece") if report.task == "classes" else ("r2", "mae", "spearman")
    found: dict[str, object] = {"probe": report.kind, "best layer": report.best_layer}
    for name in names:
        figure = report.best.test[name]
        found[f"test {name}"] = "-" if figure.value is None else f"{figure.value:.3f}"
        if figure.low is not None and figure.high is not None:
            found[f"{name} interval"] = f"{figure.low:.3f}-{figure.high:.3f}"
    selectivity = report.best.selectivity
    return found | {"selectivity": "-" if selectivity is None else f"{selectivity:.3f}"}


def main() -> None:
    """Entry point."""
    run_stage("train_probe", stage)


if __name__ == "__main__":
    main()
