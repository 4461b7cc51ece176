"""Figures layer by layer: a line a metric, its interval a band, controls dashed, the chosen layer marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from easysteer_data.plots.theme import COLOURS, ROLES, SERIES, Role, Sheet, legend_below, log_values, sheet


@dataclass(frozen=True, slots=True)
class Curve:
    """One line.

    Attributes:
        label: its name in the legend.
        values: one a layer; None where there is none, which leaves a gap.
        role: what it stands for, which decides its colour; None takes the next colour of the series.
        low: lower ends of intervals, drawn as a band together with `high`; None = no band.
        high: upper ends.
        marked: whether each layer has a marker; not for a level that no layer has a part in.
    """

    label: str
    values: Sequence[float | None]
    role: Role | None = None
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Flags:
    """Layers to mark with a cross on the bottom edge, and what the crosses mean."""

    layers: Sequence[int]
    label: str


def layer_curves(
    layers: Sequence[int],
    curves: Sequence[Curve],
    *,
    y_label: str,
    best_layer: int | None = None,
    chance: float | None = None,
    flags: Flags | None = None,
    log: bool = False,
) -> Figure:
    """Draw curves over layers.

    Args:
        layers: 0-based decoder blocks, ascending; every curve has one value for each.
        curves: the lines.
        y_label: what is measured.
        best_layer: a layer to mark from bottom to top.
        chance: a level to mark from left to right.
        flags: layers to warn of.
        log: a logarithmic axis of values.
    """
    with sheet() as drawn:
        axes = drawn.axes
        if best_layer is not None:
            axes.axvline(best_layer, color=COLOURS["rule"], linewidth=7, zorder=0)
            drawn.figure.suptitle(f"chosen on validation: layer {best_layer}", x=0.99, ha="right", size=9.5)
        for place, curve in enumerate(curves):
            _draw(drawn, layers, curve, place)
        if chance is not None:
            axes.axhline(chance, color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 2)), label="chance")
        if flags is not None and flags.layers:
            _flag(drawn, flags)
        if log:
            log_values(drawn)
        axes.set_xlabel("layer (0-based decoder block)")
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(drawn)
    return drawn.figure


def _draw(drawn: Sheet, layers: Sequence[int], curve: Curve, place: int) -> None:
    style = dict(SERIES[place % len(SERIES)] if curve.role is None else ROLES[curve.role])
    if not curve.marked:
        style["marker"] = ""
    if curve.low is not None and curve.high is not None:
        low, high = _numbers(curve.low), _numbers(curve.high)
        drawn.axes.fill_between(layers, low, high, color=style["color"], alpha=0.16, linewidth=0)
    drawn.axes.plot(layers, _numbers(curve.values), label=curve.label, **style)


def _flag(drawn: Sheet, flags: Flags) -> None:
    edge = drawn.axes.get_xaxis_transform()
    style: dict[str, Any] = {"color": COLOURS["purple"], "marker": "x", "linestyle": "", "clip_on": False}
    drawn.axes.plot(list(flags.layers), [0.0] * len(flags.layers), transform=edge, label=flags.label, **style)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
