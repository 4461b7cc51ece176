"""A probe's figures for readers: report.json, report.png, a table of plain text. Measures nothing itself."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from easysteer_data.probes.layer_result import Figures, LayerResult, Task
from easysteer_data.probes.result import ProbeReport, Transfer
from easysteer_data.shards.durable import make_folder, write_durably

JSON_NAME = "report.json"
PNG_NAME = "report.png"

# Characters of a line of the table, and of the plot's title.
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure that table and plot show of every layer."""

    split: str
    name: str
    label: str
    style: dict[str, Any]

    def figures(self, layer: LayerResult) -> Figures:
        return layer.validation if self.split == "validation" else layer.test


# Colours of Okabe and Ito, which colour-blind readers can tell apart; markers and dashes tell them twice.
_COLUMNS: dict[Task, tuple[_Column, ...]] = {
    "classes": (
        _Column("validation", "auroc", "validation AUROC", {"color": "#0072B2", "marker": "o"}),
        _Column("test", "accuracy", "test accuracy", {"color": "#009E73", "marker": "^", "linestyle": "--"}),
        _Column("test", "auroc", "test AUROC", {"color": "#D55E00", "marker": "s"}),
    ),
    "numeric": (
        _Column("validation", "r2", "validation R2", {"color": "#0072B2", "marker": "o"}),
        _Column("test", "mae", "test error", {"color": "#009E73", "marker": "^", "linestyle": "--"}),
        _Column("test", "r2", "test R2", {"color": "#D55E00", "marker": "s"}),
    ),
}


def write_report(report: ProbeReport, out: Path) -> None:
    """Write report.json and report.png to a folder, each whole or not at all.

    The JSON object is `ProbeReport.to_json`.

    Args:
        report: the figures.
        out: the folder, made where it is missing.
    """
    make_folder(out)
    text = json.dumps(report.to_json(), indent=2, allow_nan=False)
    write_durably(out / JSON_NAME, text.encode() + b"\n")
    write_durably(out / PNG_NAME, _as_png(report))


def table(report: ProbeReport) -> str:
    """Held-out figures of every layer as text of at most 80 columns, the best layer marked with a star."""
    columns = _COLUMNS[report.task]
    with_control = report.best.selectivity is not None
    headers = [*(column.label for column in columns), *(["selectivity"] if with_control else [])]
    lines = [_title(report), "", "  ".join(["  layer", *headers])]
    for layer in report.layers:
        cells = [_value(column.figures(layer), column.name) for column in columns]
        cells += [_number(layer.selectivity)] if with_control else []
        row = "  ".join(cell.rjust(len(header)) for cell, header in zip(cells, headers, strict=True))
        lines.append(f"{'*' if layer.layer == report.best_layer else ' '} {layer.layer:>5}  {row}")
    lines += ["", "* best layer on validation; its test figures:", *_best_lines(report)]
    return "\n".join([*lines, *_position_lines(report), *_transfer_lines(report.transfer), _counts(report)])


def _best_lines(report: ProbeReport) -> list[str]:
    """Every test figure of the best layer with its interval, beside the control's and the baselines'."""
    others = {name.replace("_", " "): figures for name, figures in report.baselines.items()}
    if report.best.control is not None:
        others = {"shuffled labels": report.best.control, **others}
    lines = ["  ".join([" " * 17, "value", "   interval", *others])]
    for name, figure in report.best.test.items():
        interval = f"{_number(figure.low)}-{_number(figure.high)}" if figure.low is not None else "-"
        beside = [_value(figures, name).rjust(len(other)) for other, figures in others.items()]
        label = name.replace("_", " ")
        lines.append("  ".join([f"{label:>17}", f"{_number(figure.value):>5}", f"{interval:>11}", *beside]))
    return lines


def _position_lines(report: ProbeReport) -> list[str]:
    """Of each position its best layer and that layer's figures."""
    if not report.positions:
        return []
    columns = _COLUMNS[report.task]
    lines = ["", "  ".join(["position", "layer", *(column.label for column in columns)])]
    for one in report.positions:
        best = next(layer for layer in one.layers if layer.layer == one.best_layer)
        cells = [_value(column.figures(best), column.name).rjust(len(column.label)) for column in columns]
        mark = "*" if one.position == report.position else " "
        lines.append("  ".join([f"{mark} {one.position:>6}", f"{one.best_layer:>5}", *cells]))
    return lines


def _transfer_lines(transfer: Transfer | None) -> list[str]:
    """One matrix, its rows where the probe was trained."""
    if transfer is None:
        return []
    name = next(name for name in ("auroc", "r2") if name in transfer.metrics)
    lines = ["", f"test {name} of probes trained on ... tested on 1, 2, ..."]
    for number, (data_set, row) in enumerate(zip(transfer.data_sets, transfer.metrics[name], strict=True), 1):
        cells = "  ".join(_number(value) for value in row)
        lines.append(f"  {number} {shorten(data_set, 30, placeholder='...'):<30}  {cells}")
    return lines


def _as_png(report: ProbeReport) -> bytes:
    # No pyplot: it keeps figures in process-wide state and looks for a display.
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    _draw_lines(axes, report)
    best = f"best layer on validation: {report.best_layer}"
    axes.axvline(report.best_layer, color="#999999", linewidth=6, alpha=0.3, zorder=0, label=best)
    axes.set_xlabel("layer (0-based decoder block)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    # Names are shown as they are: a dollar sign would start a formula.
    figure.suptitle(_title(report), fontsize="large", parse_math=False)
    shown = [column for column in _COLUMNS[report.task] if column.split == "test"][::-1]
    test = ", ".join(f"{column.label} {_value(report.best.test, column.name)}" for column in shown)
    axes.set_title(f"at layer {report.best_layer}: {test}; {_counts(report)}", fontsize="small")

    image = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(image, format="png", dpi=150)
    return image.getvalue()


def _draw_lines(axes: Axes, report: ProbeReport) -> None:
    """The table's figures by layer, those of the test split with their intervals; chance, and the control."""
    layer_ids = [layer.layer for layer in report.layers]
    for column in _COLUMNS[report.task]:
        figures = [column.figures(layer)[column.name] for layer in report.layers]
        axes.plot(layer_ids, _gaps([f.value for f in figures]), label=column.label, **column.style)
        if column.split == "test" and all(figure.low is not None for figure in figures):
            low, high = _gaps([figure.low for figure in figures]), _gaps([figure.high for figure in figures])
            axes.fill_between(layer_ids, low, high, color=column.style["color"], alpha=0.12, linewidth=0)
    name = "auroc" if report.task == "classes" else "r2"
    control = [None if layer.control is None else layer.control[name].value for layer in report.layers]
    if any(value is not None for value in control):
        axes.plot(
            layer_ids, _gaps(control), color="#CC79A7", linestyle=":", marker="x", label="shuffled labels"
        )
    chance = 0.5 if report.task == "classes" else 0.0
    axes.axhline(chance, color="#555555", linestyle=":", label=f"chance {'AUROC' if chance else 'R2'}")
    axes.set_ylabel("AUROC, accuracy" if report.task == "classes" else "R2, mean absolute error")


def _gaps(values: list[float | None]) -> list[float]:
    """What is undefined leaves a gap in the line."""
    return [math.nan if value is None else value for value in values]


def _value(figures: Figures, name: str) -> str:
    return _number(figures[name].value) if name in figures else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _title(report: ProbeReport) -> str:
    kind = "Logistic" if report.kind == "logistic" else report.kind.replace("_", "-")
    provenance = report.provenance
    title = f"{kind} probe on {provenance.data_set}, {provenance.model}"
    return shorten(title[0].upper() + title[1:], _WIDTH, placeholder="...")


def _counts(report: ProbeReport) -> str:
    unit = "rows" if report.counts["test"].examples == report.counts["test"].rows else "prompts"
    return f"{unit}: {report.n_train} train, {report.n_validation} validation, {report.n_test} test"
