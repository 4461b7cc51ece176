"""Numbers predicted against the numbers that they should be."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS, sheet


def predicted_numbers(label: Sequence[float], predicted: Sequence[float]) -> Figure:
    """Draw one point an example, with the diagonal on which a perfect prediction lies."""
    with sheet(height_in=3.3) as drawn:
        axes = drawn.axes
        ends = [min(*label, *predicted), max(*label, *predicted)]
        axes.plot(ends, ends, color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 2)))
        axes.scatter(label, predicted, s=12, color=COLOURS["blue"], alpha=0.55, linewidth=0)
        axes.set_xlabel("label")
        axes.set_ylabel("predicted")
    return drawn.figure
