"""Trains a probe on every layer of a run, chooses the layer on validation, measures all on test.

The way in for users: knows data modules and settings, not how a kind learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import SettingsError
from easysteer_data.probes.bootstrap import Bootstrap
from easysteer_data.probes.contract import Probe, Training
from easysteer_data.probes.controls import baselines, shuffled_labels
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.kinds import make_probe, probe_class
from easysteer_data.probes.kinds.logistic import Solver
from easysteer_data.probes.layer_result import Figures, LayerResult, best_of, validation_score
from easysteer_data.probes.loggers import close_logger
from easysteer_data.probes.measure import Measurement, scores_of
from easysteer_data.probes.result import PositionResult, ProbeReport, Provenance
from easysteer_data.probes.transfer import TransferSide, other_data, transfer_matrix
from easysteer_data.probes.weights import save_probe
from easysteer_data.settings import ProbeSettings
from easysteer_data.types import SPLITS, Split


@dataclass(frozen=True, slots=True)
class FittedProbe:
    """What `fit_probe` found.

    Attributes:
        probe: it, of all layers.
        report: the figures.
    """

    probe: Probe
    report: ProbeReport


def fit_probe(
    datamodule: ActivationDataModule,
    settings: ProbeSettings | None = None,
    *,
    logger: Logger | None = None,
    progress: bool = False,
) -> FittedProbe:
    """Fit a probe of any kind to each layer on the train split, with its controls, and measure it.

    Args:
        datamodule: the run, the layers, which rows.
        settings: kind of probe, how it is fitted and measured; None = the defaults, a logistic one.
        logger: where losses and final figures go.
        progress: show Lightning's progress bar while training.

    Raises:
        RunError: the run has no labels that the probe can learn, a row has none, or a split lacks a class.
        SettingsError: a setting is out of range, or doesn't suit the run.
    """
    settings = settings or ProbeSettings()
    training = Training(settings.max_epochs, settings.patience, progress, logger)
    if settings.by_position:
        fitted = _fit_positions(datamodule, settings, training)
    else:
        fitted = _fit(datamodule, settings, training)
    if settings.transfer:
        fitted = _with_transfer(fitted, datamodule, settings, training)
    if logger is not None:
        _log(fitted.report, logger)
    return fitted


def fit_linear_probe(
    datamodule: ActivationDataModule,
    *,
    C: float = 1.0,  # noqa: N803 - scikit-learn's name
    solver: Solver = "lbfgs",
    max_epochs: int = 100,
    progress: bool = False,
    weights: Path | None = None,
) -> ProbeReport:
    """Fit a logistic probe as `fit_probe` does, and save it to a file where one is named."""
    settings = ProbeSettings(C=C, solver=solver, max_epochs=max_epochs)
    fitted = fit_probe(datamodule, settings, progress=progress)
    if weights is not None:
        save_fitted(fitted, weights)
    return fitted.report


def save_fitted(fitted: FittedProbe, path: Path) -> None:
    """Save the probe as safetensors, with what it was trained on."""
    provenance = fitted.report.provenance
    save_probe(
        fitted.probe,
        path,
        {
            "run_fingerprint": provenance.run_fingerprint,
            "data_set": provenance.data_set,
            "model": provenance.model,
            "stream": provenance.stream,
            "best_layer": str(fitted.report.best_layer),
        },
    )


def _fit(datamodule: ActivationDataModule, settings: ProbeSettings, training: Training) -> FittedProbe:
    datamodule.setup()
    data = ProbeData(datamodule, probe_class(settings.kind).pools_prompts, seed=settings.seed)
    data.check()
    measurement = _measurement(data, settings)
    probe = make_probe(data, settings)
    probe.fit(data, training)
    control = None
    if settings.control:
        shuffled = data.relabelled(shuffled_labels(data, settings.seed))
        control = make_probe(data, settings)
        control.fit(shuffled, replace(training, logger=None, progress=False))
    scores = {split: scores_of(probe, data, split) for split in SPLITS[1:]}
    layers = _layer_results(
        probe.layer_ids,
        {split: _figures(measurement, probe, split, scores[split]) for split in SPLITS[1:]},
        None if control is None else _figures(measurement, control, "test", scores_of(control, data, "test")),
    )
    best = best_of(layers, data.task)
    place = probe.layer_ids.index(best.layer)
    report = ProbeReport(
        kind=settings.kind,
        settings=asdict(settings),
        task=data.task,
        label_names=data.label_names,
        layers=layers,
        counts={split: data.counts(split) for split in SPLITS},
        provenance=_provenance(datamodule),
        best_layer=best.layer,
        details=measurement.details(scores["test"][:, place], probe.chances),
        baselines=baselines(data, settings.C, settings.bag_of_tokens, measurement),
    )
    return FittedProbe(probe, report)


def _figures(measurement: Measurement, probe: Probe, split: Split, scores: Any) -> dict[int, Figures]:
    """Layer id -> figures of scores [examples, layers, classes]."""
    return {
        layer_id: measurement.figures(split, scores[:, place], probe.chances)
        for place, layer_id in enumerate(probe.layer_ids)
    }


def _layer_results(
    layer_ids: tuple[int, ...],
    figures: Mapping[Split, Mapping[int, Figures]],
    control: Mapping[int, Figures] | None,
) -> tuple[LayerResult, ...]:
    return tuple(
        LayerResult(
            layer_id,
            figures["validation"][layer_id],
            figures["test"][layer_id],
            None if control is None else control[layer_id],
        )
        for layer_id in sorted(layer_ids)
    )


def _fit_positions(
    datamodule: ActivationDataModule, settings: ProbeSettings, training: Training
) -> FittedProbe:
    """A probe a position; no row is of two positions, so that each is read once in all."""
    rows = dict(datamodule.hparams["rows"])
    if not rows["positions"] or probe_class(settings.kind).pools_prompts:
        raise SettingsError(
            "probe.by_position needs data.rows.positions, such as [-1,-2], and a probe that takes every row"
            f" for an example; found {rows['positions']} and {settings.kind}"
        )
    fitted = {
        position: _fit(
            ActivationDataModule(**{**datamodule.hparams, "rows": {**rows, "positions": [position]}}),
            settings,
            training,
        )
        for position in rows["positions"]
    }
    task = next(iter(fitted.values())).report.task
    # The first of equals.
    best = max(fitted, key=lambda position: validation_score(fitted[position].report.best, task))
    results = tuple(
        PositionResult(position, one.report.layers, one.report.best_layer) for position, one in fitted.items()
    )
    report = replace(fitted[best].report, position=best, positions=results)
    return FittedProbe(fitted[best].probe, report)


def _with_transfer(
    fitted: FittedProbe, datamodule: ActivationDataModule, settings: ProbeSettings, training: Training
) -> FittedProbe:
    if fitted.report.position is not None:
        rows = {**datamodule.hparams["rows"], "positions": [fitted.report.position]}
        datamodule = ActivationDataModule(**{**datamodule.hparams, "rows": rows})
    data = ProbeData(datamodule, fitted.probe.pools_prompts, seed=settings.seed)
    plain = replace(settings, bootstrap=0, control=False, bag_of_tokens=False, by_position=False)
    sides = [TransferSide(fitted.probe, fitted.report.best_layer, _measurement(data, plain))]
    for other in other_data(data, settings.transfer, settings.transfer_labels):
        one = _fit(other.datamodule, plain, replace(training, logger=None))
        sides.append(TransferSide(one.probe, one.report.best_layer, _measurement(other, plain)))
    matrix = transfer_matrix(sides, settings.transfer_labels)
    return FittedProbe(fitted.probe, replace(fitted.report, transfer=matrix))


def _measurement(data: ProbeData, settings: ProbeSettings) -> Measurement:
    bootstrap = Bootstrap(settings.bootstrap, settings.interval, settings.seed)
    return Measurement(data, bootstrap, settings.bins, settings.n_prompts)


def _provenance(datamodule: ActivationDataModule) -> Provenance:
    manifest = datamodule.run.manifest
    gates = manifest.measured.get("gates")
    return Provenance(
        run=str(datamodule.run.path),
        run_fingerprint=manifest.header.fingerprint,
        data_set=str(manifest.header.corpus.get("name", "unnamed corpus")),
        model=str(manifest.header.model.get("name", "unnamed model")),
        stream=str(datamodule.hparams["stream"]),
        layer_convention=manifest.header.layer_convention,
        gates=dict(gates) if isinstance(gates, Mapping) else {},
    )


def _log(report: ProbeReport, logger: Logger) -> None:
    """The settings, and every layer's figures as they are in the report."""
    logger.log_hyperparams(dict(report.settings))
    logger.log_metrics(
        {
            f"final/{split}/{name}/layer-{layer.layer:03d}": figure.value
            for layer in report.layers
            for split, figures in (("val", layer.validation), ("test", layer.test))
            for name, figure in figures.items()
            if figure.value is not None
        }
    )
    close_logger(logger)
