"""Calibration: how often a probe is right against how sure it is, and how often it is so sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS, sheet


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of about the same predicted probability.

    Attributes:
        predicted: their mean predicted probability, 0 to 1.
        observed: the share that it came true of.
        n_rows: how many there are, 1 or more.
    """

    predicted: float
    observed: float
    n_rows: int


def calibration_curve(bins: Sequence[CalibrationBin], predicted: str, observed: str) -> Figure:
    """Draw one point a bin, its area by its rows, with the diagonal of perfect calibration.

    Args:
        bins: the points.
        predicted: label of the axis of predictions.
        observed: label of the axis of observations.
    """
    largest = max(point.n_rows for point in bins)
    with sheet(height_in=3.3) as drawn:
        axes = drawn.axes
        axes.plot([0, 1], [0, 1], color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate("calibrated", (0.66, 0.6), ha="left", va="top", size=9)
        x, y = [point.predicted for point in bins], [point.observed for point in bins]
        axes.plot(x, y, color=COLOURS["blue"], linewidth=1)
        area = [12 + 140 * point.n_rows / largest for point in bins]
        axes.scatter(x, y, s=area, color=COLOURS["blue"], alpha=0.55, linewidth=0)
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
        axes.set_xlabel(predicted)
        axes.set_ylabel(observed)
    return drawn.figure
