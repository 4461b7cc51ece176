"""Dose and response: what a figure of steered text does as the scale of the steering vector grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS, SERIES, legend_below, log_values, sheet


@dataclass(frozen=True, slots=True)
class DoseLine:
    """One curve.

    Attributes:
        label: its name in the legend.
        scales: steering scales, ascending.
        values: what was measured at each.
        low: lower ends of intervals, None = none.
        high: upper ends.
    """

    label: str
    scales: Sequence[float]
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


def dose_response(
    lines: Sequence[DoseLine],
    *,
    y_label: str,
    usable: tuple[float, float] | None = None,
    log: bool = False,
) -> Figure:
    """Draw curves over the scale; scale 0 is the unsteered text.

    Args:
        lines: the curves.
        y_label: what was measured.
        usable: range of scales to mark.
        log: a logarithmic axis of values.
    """
    with sheet() as drawn:
        axes = drawn.axes
        if usable is not None:
            axes.axvspan(*usable, color=COLOURS["rule"], alpha=0.6, linewidth=0, label="usable range")
        axes.axvline(0, color=COLOURS["faint"], linewidth=0.8, linestyle=(0, (1, 2)))
        for place, line in enumerate(lines):
            style = dict(SERIES[place % len(SERIES)])
            if line.low is not None and line.high is not None:
                low, high = _numbers(line.low), _numbers(line.high)
                axes.fill_between(line.scales, low, high, color=style["color"], alpha=0.16, linewidth=0)
            axes.plot(line.scales, _numbers(line.values), label=line.label, **style)
        if log:
            log_values(drawn)
        axes.set_xlabel("scale (0 = unsteered)")
        axes.set_ylabel(y_label)
        legend_below(drawn)
    return drawn.figure


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
