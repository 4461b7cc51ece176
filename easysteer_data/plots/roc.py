"""The ROC curve: share of positives found against share of negatives taken for positive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS, SERIES, legend_below, sheet


@dataclass(frozen=True, slots=True)
class RocLine:
    """One curve.

    Attributes:
        label: its name in the legend.
        false_positive: share of negatives above each threshold, 0 to 1, ascending.
        true_positive: share of positives above it.
    """

    label: str
    false_positive: Sequence[float]
    true_positive: Sequence[float]


def roc_curve(lines: Sequence[RocLine]) -> Figure:
    """Draw one curve or several, with the diagonal of chance."""
    with sheet(height_in=3.3) as drawn:
        axes = drawn.axes
        axes.plot([0, 1], [0, 1], color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate("chance", (0.66, 0.6), ha="left", va="top", size=9)
        for place, line in enumerate(lines):
            style = {**SERIES[place % len(SERIES)], "marker": ""}
            axes.plot(line.false_positive, line.true_positive, label=line.label, **style)
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        legend_below(drawn, n_columns=1)
    return drawn.figure
