"""A trial's figures for readers: a JSON object, a table of plain text. Measures nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import shorten
from typing import Any

from easysteer_data.steer_trial.result import Cell, Curve, Figure, Sample, ScaleRange, SteerReport

_TEXT_WIDTH = 90  # characters of a completion in the table
_N_SHOWN = 2  # prompts whose completions the table shows


def steer_report_json(report: SteerReport) -> dict[str, Any]:
    """SteerReport's attributes as plain values, and `baseline` and `best` (null where no scale is usable)."""
    best = report.best
    return {
        **asdict(report),
        "baseline": asdict(report.baseline),
        "best": None if best is None else asdict(best),
    }


def steer_table(report: SteerReport) -> str:
    """The figures of every curve as text, and the completions of some prompts."""
    target = next(score for score in report.scores if score.name == report.target)
    vector = f"{report.estimator or 'steering vector'} of {report.data_set or 'unknown data'}"
    lines = [f"{vector} on {report.model}, {report.algorithm}: {report.prompts}"]
    lines += [f"{'target' if score is target else score.name}: {score.meaning}" for score in report.scores]
    for curve in report.curves:
        lines += ["", *_curve_lines(curve, report)]
    lines += ["", _limits_line(report), f"scale 1: {report.scale_unit}", _best_line(report)]
    for sample in report.samples[:_N_SHOWN]:
        lines += ["", *_sample_lines(sample, report)]
    return "\n".join(lines)


def layers_name(layers: Sequence[int]) -> str:
    """Of one block "layer 12", of several "layers 10, 12", of neighbours "layers 10 to 12"."""
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def _curve_lines(curve: Curve, report: SteerReport) -> list[str]:
    names = [report.target, *(score.name for score in report.scores if score.name != report.target)]
    found = f"rising {_range(curve.rising)}, usable {_range(curve.usable)}"
    lines = [f"{layers_name(curve.layers)}: {report.target} {found}"]
    lines.append(
        f"  {'scale':>7}  {names[0]:>8}  {'95 %':>17}" + "".join(f"  {name:>10}" for name in names[1:])
    )
    return lines + [_cell_line(cell, curve, names) for cell in curve.cells]


def _cell_line(cell: Cell, curve: Curve, names: Sequence[str]) -> str:
    mark = "*" if cell.scale in curve.usable else " "
    target = cell.figures[names[0]]
    interval = f"{target.low:.3f} to {target.high:.3f}"
    others = "".join(f"  {_value(cell.figures.get(name)):>10}" for name in names[1:])
    return f"{mark} {cell.scale:>7g}  {target.value:>8.3f}  {interval:>17}{others}"


def _value(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:.3f}"


def _range(found: ScaleRange) -> str:
    return "nowhere" if found.n_scales == 1 else f"from {found.lowest:g} to {found.highest:g}"


def _limits_line(report: SteerReport) -> str:
    limits = report.limits
    rises = f"{report.target} rises, " if report.algorithm == "direct" else ""
    return (
        f"* usable: {rises}perplexity at most {limits.perplexity_ratio:g} x that of scale 0, repetition "
        f"at most {limits.repetition:g}"
    )


def _best_line(report: SteerReport) -> str:
    best = report.best
    if best is None:
        return "no scale of this grid is usable"
    where = f"{layers_name(best.layers)}, scale {best.scale:g}"
    return f"largest usable change of {report.target}: {best.change:+.3f} at {where}"


def _sample_lines(sample: Sample, report: SteerReport) -> list[str]:
    layers = report.curves[0].layers if report.best is None else report.best.layers
    shown = [one for one in sample.completions if one.scale == 0 or one.layers == layers]
    lines = [f"{_short(sample.prompt)} ({layers_name(layers)})"]
    return lines + [
        f"  {one.scale:>7g}  {_short(one.text)}" for one in sorted(shown, key=lambda one: one.scale)
    ]


def _short(text: str) -> str:
    return shorten(text, _TEXT_WIDTH, placeholder=" ...")
