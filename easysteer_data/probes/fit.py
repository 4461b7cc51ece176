"""Trains a logistic probe on every layer of a run and measures it on the held-out splits.

Knows Lightning's Trainer and keeps it quiet; the probe itself is in linear.py.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning import Trainer
from torch import bincount

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError
from easysteer_data.probes.linear import LinearProbe, Solver, metric_name
from easysteer_data.probes.metrics import check_classes
from easysteer_data.probes.result import LayerResult, ProbeReport
from easysteer_data.probes.weights import save_probe
from easysteer_data.types import SPLITS, Split


def fit_linear_probe(
    datamodule: ActivationDataModule,
    *,
    C: float = 1.0,  # noqa: N803 - scikit-learn's name
    solver: Solver = "lbfgs",
    max_epochs: int = 100,
    progress: bool = False,
    weights: Path | None = None,
) -> ProbeReport:
    """Fit a probe to each layer on the train split, choose the layer on validation, measure all on test.

    Args:
        datamodule: the run and the layers; with `batch_size=None` for the solver `lbfgs`.
        C: inverse strength of the L2 penalty, with scikit-learn's meaning.
        solver: `lbfgs` or `adam`, see LinearProbe.
        max_epochs: passes over the train split for `adam`; `lbfgs` needs one.
        progress: show Lightning's progress bar while training.
        weights: file to save the probe to, as safetensors.

    Returns:
        Figures of every layer.

    Raises:
        RunError: the run has no classes as labels, a row has no label, or a split lacks rows or a class.
        SettingsError: a setting is out of range, or doesn't suit the solver.
    """
    datamodule.setup()
    n_rows = {split: _n_labelled_rows(datamodule, split) for split in SPLITS}
    probe = LinearProbe(datamodule.layer_ids, datamodule.width, datamodule.label.names, C, solver)
    with _quiet_lightning():
        trainer = _trainer(max_epochs=max_epochs, enable_progress_bar=progress, limit_val_batches=0)
        trainer.fit(probe, datamodule=datamodule)
        figures = _measured(probe, datamodule)
    provenance = _provenance(datamodule)
    if weights is not None:
        save_probe(probe, weights, provenance)
    return ProbeReport(
        layers=tuple(_layer_result(layer_id, figures) for layer_id in sorted(datamodule.layer_ids)),
        n_train=n_rows["train"],
        n_validation=n_rows["validation"],
        n_test=n_rows["test"],
        label_names=datamodule.label.names,
        **provenance,
    )


def _n_labelled_rows(datamodule: ActivationDataModule, split: Split) -> int:
    """Rows of a split, once it is known that a probe can be trained and measured on it."""
    labels, header = datamodule.run.labels, datamodule.label
    if labels is None or header.kind != "classes":
        found = "no labels" if labels is None else "numbers as labels"
        raise RunError(f"{datamodule.run.path} has {found}, but a logistic probe needs classes")
    labels = labels[datamodule.dataset(split).rows]
    n_without = int((labels < 0).sum())
    if n_without:
        raise RunError(
            f"{datamodule.run.path}: {n_without} of {len(labels)} rows of split {split!r} have no label;"
            " leave them out with ActivationDataModule(labelled_only=True)"
        )
    check_classes(split, bincount(labels, minlength=len(header.names)).tolist(), header.names)
    return len(labels)


def _measured(probe: LinearProbe, datamodule: ActivationDataModule) -> dict[str, float]:
    """Every figure that the probe logs on validation and test, by its name."""
    trainer = _trainer(enable_progress_bar=False)
    (validation,) = trainer.validate(probe, datamodule=datamodule, verbose=False)
    (test,) = trainer.test(probe, datamodule=datamodule, verbose=False)
    return {**validation, **test}


def _layer_result(layer_id: int, figures: Mapping[str, float]) -> LayerResult:
    val_auroc, test_accuracy, test_auroc = (
        # torchmetrics computes in float32: without rounding, noise would decide between equally good layers.
        round(figures[name], 6)
        for name in (
            metric_name("validation", "auroc", layer_id),
            metric_name("test", "accuracy", layer_id),
            metric_name("test", "auroc", layer_id),
        )
    )
    return LayerResult(layer_id, val_auroc, test_accuracy, test_auroc)


def _provenance(datamodule: ActivationDataModule) -> dict[str, str]:
    header = datamodule.run.manifest.header
    return {
        "run_fingerprint": header.fingerprint,
        "data_set": str(header.corpus.get("name", "unnamed corpus")),
        "model": str(header.model.get("name", "unnamed model")),
    }


def _trainer(**options: Any) -> Trainer:
    return Trainer(
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's notes on devices, and warnings that the reader can do nothing with."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Rows are mapped, one process reads them fast enough.
            warnings.filterwarnings("ignore", ".*does not have many workers", UserWarning)
            # An engine in this process has a process group; Lightning takes it for the Trainer's.
            warnings.filterwarnings("ignore", ".*sync_dist=True.* in distributed setting", UserWarning)
            # Lightning 2.6 on torch 2.13.
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
