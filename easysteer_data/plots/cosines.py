"""A heat map of cosines: which directions are the same. Transparent at 0, so that it suits any ground."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from easysteer_data.plots.theme import COLOURS, sheet

_MAX_TICKS = 8
_MAX_WRITTEN = 6  # rows of a matrix whose cells show their number


def cosine_map(names: Sequence[str], matrix: Sequence[Sequence[float]], axis_label: str = "") -> Figure:
    """Draw a square matrix of cosines, -1 to 1; small ones with their numbers.

    Args:
        names: of its rows and columns.
        matrix: the cosines.
        axis_label: what the names are.
    """
    values = np.clip(np.asarray(matrix, dtype=float), -1, 1)
    size = len(names)
    colours = _signed_colours()
    with sheet(height_in=3.2) as drawn:
        axes = drawn.axes
        axes.grid(visible=False)
        axes.imshow(values, cmap=colours, norm=Normalize(-1, 1), interpolation="none")
        _name_axes(axes, names)
        axes.set_xlabel(axis_label)
        axes.set_ylabel(axis_label)
        for row, column in np.ndindex(size, size) if size <= _MAX_WRITTEN else ():
            axes.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", size=9)
        bar = drawn.figure.colorbar(ScalarMappable(Normalize(-1, 1), colours), ax=axes, shrink=0.8)
        bar.set_label("cosine")
        bar.outline.set_visible(False)
    return drawn.figure


def _signed_colours() -> ListedColormap:
    """Orange below 0 and blue above, the denser the farther from it."""
    steps = np.linspace(-1, 1, 201)
    below, above = to_rgb(COLOURS["orange"]), to_rgb(COLOURS["blue"])
    return ListedColormap([(*(above if step > 0 else below), 0.65 * abs(step)) for step in steps])


def _name_axes(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // _MAX_TICKS)
    places = list(range(0, len(names), every))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(places))
        axis.set_major_formatter(FixedFormatter([names[place] for place in places]))
    if max(map(len, names)) > 4:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
