"""Figures of fitted vectors for readers: a table of plain text, a JSON object. Measures nothing itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from easysteer_data.vectors.figures import SplitFigures
from easysteer_data.vectors.result import EstimatorReport, LayerFigures, VectorReport


def vector_table(report: VectorReport) -> str:
    """Figures of every estimator and layer as text, the best layers marked with a star."""
    counts = ", ".join(f"{n_rows} {split}" for split, n_rows in report.n_rows.items())
    lines = [
        f"{report.data_set}, {report.model}: from {report.negative!r} to {report.positive!r} (rows: {counts})"
    ]
    for estimator in report.estimators:
        lines += ["", *_estimator_lines(estimator)]
    lines += _comparison_lines(report)
    lines += ["", "* best layer on validation; step: in units of the rows, and of their norm"]
    if any(estimator.confound for estimator in report.estimators):
        lines.append("! tells the confound's values apart better than the classes, on validation")
    return "\n".join(lines)


def vector_report_json(report: VectorReport) -> dict[str, Any]:
    """The report as plain values.

    `estimators` is a list of objects of `name`, `settings`, `best_layer`, `confound`, `confounded_by`,
    `confounded_layers`, `median_test_pair_accuracy`, `layers` (as LayerFigures) and `layer_cosines`;
    `best_estimator` names one of them.
    """
    return {
        "best_estimator": report.best.name,
        "estimators": [_estimator_json(estimator) for estimator in report.estimators],
        "estimator_cosines": {str(layer): rows for layer, rows in report.estimator_cosines.items()},
        "n_rows": dict(report.n_rows),
        "negative": report.negative,
        "positive": report.positive,
        "run_fingerprint": report.run_fingerprint,
        "data_set": report.data_set,
        "model": report.model,
    }


def _estimator_json(estimator: EstimatorReport) -> dict[str, Any]:
    values = asdict(estimator)
    values["best_layer"] = None if estimator.best is None else estimator.best.layer
    values["confounded_by"] = estimator.confounded_by
    values["confounded_layers"] = estimator.confounded_layers
    values["median_test_pair_accuracy"] = estimator.median_test_pair_accuracy
    return values


def _comparison_lines(report: VectorReport) -> list[str]:
    """All estimators in the layer of the best one, on the test split."""
    if report.best.best is None or len(report.estimators) < 2:
        return []
    layer = report.best.best.layer
    lines = ["", f"test split in layer {layer}, the best of {report.best.name}"]
    lines.append(f"  {'':>20}  {'AUROC':>7}  {'pairs':>6}  {'median of layers':>16}  {'confound AUROC':>14}")
    for one in report.estimators:
        test = one.at(layer).test
        confound = None if test is None else test.confound_auroc
        median = _figure(one.median_test_pair_accuracy)
        lines.append(f"  {one.name:>20}  {_cells(test)}  {median:>16}  {_figure(confound):>14}")
    best = report.best.at(layer).test
    if best is not None and best.confound_pair_accuracy is not None:
        # Which of two values lies higher is a matter of chance where a direction has little of them.
        low, high = sorted((best.confound_pair_accuracy, 1 - best.confound_pair_accuracy))
        lines.append(
            f"  {report.best.confound} alone would be right for {low:.3f} or {high:.3f} of the pairs"
        )
    return lines


def _estimator_lines(estimator: EstimatorReport) -> list[str]:
    lines = [estimator.name]
    if estimator.confounded_layers:
        lines[0] += (
            f"{': CONFOUNDED' if estimator.confounded_by else ''}: {len(estimator.confounded_layers)} of "
            f"{len(estimator.layers)} layers tell {estimator.confound} apart better than the classes"
        )
    lines.append(
        f"  {'':>5}  {'step':>18}  {'validation':>15}  {'test':>15}"
        + (f"  {estimator.confound:>16}" if estimator.confound else "")
    )
    names = f"{'AUROC':>7}  {'pairs':>6}"
    lines.append(
        f"  {'layer':>5}  {'length':>9}  {'of norm':>7}  {names}  {names}"
        + (f"  {'AUROC val., test':>16}" if estimator.confound else "")
    )
    lines += [_layer_line(figures, estimator) for figures in estimator.layers]
    return lines


def _layer_line(figures: LayerFigures, estimator: EstimatorReport) -> str:
    mark = "*" if figures == estimator.best else " "
    splits = (figures.validation, figures.test)
    step = f"{figures.norm:>9.4g}  {figures.relative_norm:>7.1%}"
    line = f"{mark} {figures.layer:>5}  {step}  {_cells(figures.validation)}  {_cells(figures.test)}"
    if estimator.confound:
        found = [None if split is None else split.confound_auroc for split in splits]
        line += " " + " ".join(f"{_figure(value):>8}" for value in found)
        line += " !" if figures.layer in estimator.confounded_layers else ""
    return line


def _cells(split: SplitFigures | None) -> str:
    auroc, pairs = (None, None) if split is None else (split.auroc, split.pair_accuracy)
    return f"{_figure(auroc):>7}  {_figure(pairs):>6}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
