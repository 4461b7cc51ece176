"""The probe's figures: metrics over layers beside controls, and what the best layer's probe does.

Reads the contents of report.json only; KeyError or TypeError where it is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from easysteer_data.plots import (
    CalibrationBin,
    Curve,
    RocLine,
    calibration_curve,
    confusion_matrix,
    layer_curves,
    predicted_numbers,
    roc_curve,
)
from easysteer_data.plots.theme import Role
from easysteer_data.report_page.content import PageFigure
from easysteer_data.report_page.words import number, percent, sentence

Json = Mapping[str, Any]

TITLES = {
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "ece": "calibration error (ECE)",
    "brier": "Brier score",
    "r2": "R²",
    "mae": "mean absolute error",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
_CHANCE = {"auroc": 0.5}


def best_layer(report: Json) -> Json:
    """Figures of the best layer."""
    layers: Sequence[Json] = report["layers"]
    return next(one for one in layers if one["layer"] == report["best_layer"])


def metric_curves(report: Json, metric: str) -> PageFigure:
    """A metric over layers, with its interval, the control and the baselines."""
    layers: Sequence[Json] = report["layers"]
    title = TITLES[metric]
    curves = [
        _curve(layers, "validation", metric, "validation"),
        _curve(layers, "test", metric, "test"),
    ]
    if layers[0]["control"]:
        curves.append(_curve(layers, "control", metric, "control", "shuffled labels"))
    for name, figures in report["baselines"].items():
        level = figures.get(metric)
        if level is not None and level["value"] is not None:
            role: Role = "baseline" if name == "bag_of_tokens" else "other"
            curves.append(Curve(name.replace("_", " "), [level["value"]] * len(layers), role, marked=False))
    figure = layer_curves(
        [one["layer"] for one in layers],
        curves,
        y_label=title,
        best_layer=report["best_layer"],
        chance=_CHANCE.get(metric),
    )
    best = best_layer(report)
    caption = "Held-out groups."
    if best["test"][metric]["low"] is not None:
        caption += f" The band is the {percent(report['settings']['interval'])} interval over groups."
    description = (
        f"{title} of the probe in {len(layers)} layers. Best on validation: layer {best['layer']}, "
        f"test {title} {number(best['test'][metric]['value'])}."
    )
    return PageFigure(f"probe-{metric}", sentence(f"{title} by layer"), caption, description, figure)


def _curve(layers: Sequence[Json], split: str, metric: str, role: Role, label: str | None = None) -> Curve:
    found = [(one[split] or {}).get(metric) or {} for one in layers]
    parts = ([figure.get(part) for figure in found] for part in ("value", "low", "high"))
    values, low, high = parts
    banded = role == "test" and None not in low and None not in high
    return Curve(label or split, values, role, low if banded else None, high if banded else None)


def figures_of_best(report: Json) -> list[PageFigure]:
    """What the best layer's probe does on the test split, of what there is for its labels."""
    best, layer, names = report["best"], report["best_layer"], report["label_names"]
    test = best_layer(report)["test"]
    figures = []
    if best["roc"]:
        lines = [
            RocLine(
                f"{one['label']!r} against the rest", one["false_positive_rate"], one["true_positive_rate"]
            )
            for one in best["roc"]
        ]
        caption = f"Test split, layer {layer}; area {number(test['auroc']['value'])}."
        figures.append(PageFigure("probe-roc", "ROC", caption, f"ROC curve. {caption}", roc_curve(lines)))
    if best["calibration"]:
        bins = [CalibrationBin(one["predicted"], one["observed"], one["n"]) for one in best["calibration"]]
        event = f"of {names[1]!r}" if len(names) == 2 else "of the predicted class"
        figure = calibration_curve(bins, f"predicted chance {event}", "share for which it came true")
        caption = (
            f"Test split, layer {layer}; ECE {number(test['ece']['value'])}. Larger points hold more rows."
        )
        figures.append(
            PageFigure("probe-calibration", "Calibration", caption, f"Reliability diagram. {caption}", figure)
        )
    if best["confusion"]:
        figure = confusion_matrix(names, best["confusion"])
        caption = f"Test split, layer {layer}; shares are of the true class."
        cells = "; ".join(
            f"{name!r}: {', '.join(map(str, row))}"
            for name, row in zip(names, best["confusion"], strict=True)
        )
        description = f"Confusion matrix. {caption} Counts by true class: {cells}."
        figures.append(PageFigure("probe-confusion", "Confusion", caption, description, figure))
    if best["predictions"]:
        figure = predicted_numbers(*zip(*best["predictions"], strict=True))
        caption = f"Test split, layer {layer}; R² {number(test['r2']['value'])}."
        description = f"Predicted numbers against labels. {caption}"
        figures.append(PageFigure("probe-predictions", "Predictions", caption, description, figure))
    return figures


def position_curves(report: Json, metric: str) -> PageFigure:
    """A metric over layers, a line for each position."""
    positions: Sequence[Json] = report["positions"]
    curves = [
        Curve(f"position {one['position']}", [layer["test"][metric]["value"] for layer in one["layers"]])
        for one in positions
    ]
    layer_ids = [layer["layer"] for layer in positions[0]["layers"]]
    figure = layer_curves(
        layer_ids, curves, y_label=f"{TITLES[metric]}, test split", chance=_CHANCE.get(metric)
    )
    caption = "A probe for each position; negative positions count from the prompt's end."
    best = "; ".join(f"position {one['position']}: layer {one['best_layer']}" for one in positions)
    description = f"{caption} Best layers: {best}."
    return PageFigure("probe-positions", "Positions", caption, description, figure)
