"""A probe's figures for readers: report.json, report.png, a table of plain text. Measures nothing itself."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from easysteer_data.probes.result import ProbeReport
from easysteer_data.shards.durable import make_folder, write_durably

JSON_NAME = "report.json"
PNG_NAME = "report.png"

# Characters of a line of the table, and of the plot's title.
_WIDTH = 80

# Colours of Okabe and Ito, which colour-blind readers can tell apart; markers and dashes tell them twice.
_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("val_auroc", "validation AUROC", {"color": "#0072B2", "marker": "o"}),
    ("test_auroc", "test AUROC", {"color": "#D55E00", "marker": "s"}),
    ("test_accuracy", "test accuracy", {"color": "#009E73", "marker": "^", "linestyle": "--"}),
)


def write_report(report: ProbeReport, out: Path) -> None:
    """Write report.json and report.png to a folder, each whole or not at all.

    The JSON object holds `layers` (a list of layer, val_auroc, test_accuracy, test_auroc),
    `best_layer` (chosen on validation), `test_auroc` and `test_accuracy` (of that layer), `n_train`,
    `n_validation` and `n_test` (rows), `label_names`, `run_fingerprint`, `data_set` and `model`.

    Args:
        report: the figures.
        out: the folder, made where it is missing.
    """
    make_folder(out)
    write_durably(out / JSON_NAME, json.dumps(_as_json(report), indent=2).encode() + b"\n")
    write_durably(out / PNG_NAME, _as_png(report))


def table(report: ProbeReport) -> str:
    """Held-out figures of every layer as text of at most 80 columns, the best layer marked with a star."""
    lines = [_title(report), ""]
    lines.append(f"  {'layer':>5}  {'validation AUROC':>16}  {'test accuracy':>13}  {'test AUROC':>10}")
    for result in report.layers:
        mark = "*" if result.layer == report.best_layer else " "
        lines.append(
            f"{mark} {result.layer:>5}  {result.val_auroc:>16.3f}  {result.test_accuracy:>13.3f}"
            f"  {result.test_auroc:>10.3f}"
        )
    lines += ["", "* best layer on validation", _counts(report)]
    return "\n".join(lines)


def _as_json(report: ProbeReport) -> dict[str, Any]:
    return {
        "layers": [asdict(result) for result in report.layers],
        "best_layer": report.best_layer,
        "test_auroc": report.test_auroc,
        "test_accuracy": report.test_accuracy,
        "n_train": report.n_train,
        "n_validation": report.n_validation,
        "n_test": report.n_test,
        "label_names": list(report.label_names),
        "run_fingerprint": report.run_fingerprint,
        "data_set": report.data_set,
        "model": report.model,
    }


def _as_png(report: ProbeReport) -> bytes:
    # No pyplot: it keeps figures in process-wide state and looks for a display.
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    layer_ids = [result.layer for result in report.layers]
    for key, label, style in _LINES:
        axes.plot(layer_ids, [getattr(result, key) for result in report.layers], label=label, **style)
    axes.axhline(0.5, color="#555555", linestyle=":", label="chance AUROC")
    best = f"best layer on validation: {report.best_layer}"
    axes.axvline(report.best_layer, color="#999999", linewidth=6, alpha=0.3, zorder=0, label=best)
    axes.set_xlabel("layer (0-based decoder block)")
    axes.set_ylabel("AUROC, accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    # Names are shown as they are: a dollar sign would start a formula.
    figure.suptitle(_title(report), fontsize="large", parse_math=False)
    test = f"test AUROC {report.test_auroc:.3f}, accuracy {report.test_accuracy:.3f}"
    axes.set_title(f"at layer {report.best_layer}: {test}; {_counts(report)}", fontsize="small")

    image = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(image, format="png", dpi=150)
    return image.getvalue()


def _title(report: ProbeReport) -> str:
    return shorten(f"Linear probe on {report.data_set}, {report.model}", _WIDTH, placeholder="...")


def _counts(report: ProbeReport) -> str:
    return f"rows: {report.n_train} train, {report.n_validation} validation, {report.n_test} test"
