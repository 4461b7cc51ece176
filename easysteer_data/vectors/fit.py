"""Fits estimators on a run's train split and measures their directions on the others. Knows no settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from easysteer_data.errors import RunError
from easysteer_data.types import SPLITS
from easysteer_data.vectors.estimators import Estimator
from easysteer_data.vectors.figures import SplitFigures, cosines, measure
from easysteer_data.vectors.result import EstimatorReport, LayerFigures, VectorReport
from easysteer_data.vectors.source import ContrastSource
from easysteer_data.vectors.steering_vector import SteeringVector, VectorProvenance, model_fingerprint

_HELD_OUT = SPLITS[1:]
# Relative to the mean norm of a row: below it a step is the rounding of float32 rows.
_NO_STEP = 1e-9


@dataclass(frozen=True, slots=True)
class FittedVectors:
    """What `fit_vectors` found.

    Attributes:
        vectors: estimator -> its vector, of all layers.
        report: the figures.
    """

    vectors: Mapping[str, SteeringVector]
    report: VectorReport

    @property
    def best(self) -> SteeringVector:
        """The vector of the report's best estimator."""
        return self.vectors[self.report.best.name]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's steps, float64 [width], row norm and figures by split, each by estimator."""

    steps: Mapping[str, torch.Tensor]
    mean_norm: float
    figures: Mapping[str, Mapping[str, SplitFigures]]


def fit_vectors(
    source: ContrastSource, estimators: Mapping[str, Estimator], max_bytes: int = 2**31
) -> FittedVectors:
    """Fit every estimator to every layer, in one read of the rows of each layer.

    Args:
        source: the run's rows.
        estimators: name -> estimator, see `make_estimators`.
        max_bytes: memory for rows; layers are worked on together as far as it goes, one at least.

    Raises:
        RunError: the train split lacks a class or what an estimator needs, or a layer has no difference.
    """
    layers: dict[int, _Layer] = {}
    for layer_ids in source.chunks(max_bytes):
        layers |= _fit_layers(source, estimators, layer_ids)
    reports = tuple(_report_of(source, name, estimator, layers) for name, estimator in estimators.items())
    vectors = {
        report.name: SteeringVector.of_steps(
            {layer_id: layer.steps[report.name] for layer_id, layer in layers.items()},
            _provenance(source, report),
        )
        for report in reports
    }
    return FittedVectors(vectors, _report(source, reports, layers))


def _fit_layers(
    source: ContrastSource, estimators: Mapping[str, Estimator], layer_ids: Sequence[int]
) -> dict[int, _Layer]:
    contrast = source.contrast(layer_ids)
    steps = {name: estimator(contrast) for name, estimator in estimators.items()}
    for name, found in steps.items():
        _check_steps(source, name, layer_ids, found.norm(dim=-1) / contrast.mean_norm)
    figures: dict[str, dict[str, list[SplitFigures]]] = {name: {} for name in estimators}
    for split in _HELD_OUT if source.has_rows else ():
        rows = source.rows(split, layer_ids)
        if rows.has_both_classes:
            for name, found in steps.items():
                figures[name][split] = measure(rows, found)
    return {
        layer_id: _Layer(
            {name: found[place] for name, found in steps.items()},
            float(contrast.mean_norm[place]),
            {name: {split: found[place] for split, found in own.items()} for name, own in figures.items()},
        )
        for place, layer_id in enumerate(layer_ids)
    }


def _check_steps(
    source: ContrastSource, name: str, layer_ids: Sequence[int], relative_norms: torch.Tensor
) -> None:
    for layer_id, relative in zip(layer_ids, relative_norms.tolist(), strict=True):
        if not relative > _NO_STEP:
            raise RunError(
                f"{source.run.path}: layer {layer_id}: {source.negative!r} and {source.positive!r} do not "
                f"differ along the direction of {name} (a step of {relative:.1e} of the rows' norm); leave "
                "the layer out with data.layers"
            )


def _report_of(
    source: ContrastSource, name: str, estimator: Estimator, layers: Mapping[int, _Layer]
) -> EstimatorReport:
    figures = [
        LayerFigures(
            layer_id,
            norm := float(layer.steps[name].norm()),
            norm / layer.mean_norm,
            layer.figures[name].get("validation"),
            layer.figures[name].get("test"),
        )
        for layer_id, layer in layers.items()
    ]
    between = cosines(torch.stack([layer.steps[name] for layer in layers.values()]))
    return EstimatorReport(name, asdict(estimator), tuple(figures), _rows_of(between), source.confound)


def _report(
    source: ContrastSource, reports: tuple[EstimatorReport, ...], layers: Mapping[int, _Layer]
) -> VectorReport:
    header = source.run.manifest.header
    return VectorReport(
        estimators=reports,
        estimator_cosines={
            layer_id: _rows_of(cosines(torch.stack([layer.steps[one.name] for one in reports])))
            for layer_id, layer in layers.items()
        },
        n_rows={split: source.n_rows(split) for split in SPLITS},
        negative=source.negative,
        positive=source.positive,
        run_fingerprint=header.fingerprint,
        data_set=str(header.corpus.get("name", "unnamed corpus")),
        model=str(header.model.get("name", "unnamed model")),
    )


def _provenance(source: ContrastSource, report: EstimatorReport) -> VectorProvenance:
    header = source.run.manifest.header
    sha256 = header.model.get("sha256")
    return VectorProvenance(
        estimator=report.name,
        settings=report.settings,
        model=str(header.model.get("name", "unnamed model")),
        model_fingerprint=model_fingerprint(sha256) if isinstance(sha256, Mapping) else None,
        stream=source.stream,
        layer_convention=header.layer_convention,
        data_set=str(header.corpus.get("name", "unnamed corpus")),
        data_fingerprint=header.fingerprint,
        selection=source.selection,
        best_layer=None if report.best is None else report.best.layer,
        sign=f"from {source.negative!r} to {source.positive!r}, the class of the higher index",
    )


def _rows_of(matrix: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())
