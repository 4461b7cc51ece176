"""The confusion matrix: which class a probe takes rows of each class for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS, sheet

_MAX_WRITTEN = 10  # classes of a matrix whose cells show their number


def confusion_matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """Draw counts [true class][predicted class], shaded by the share of their true class.

    Args:
        names: the classes.
        counts: rows of each true class that were taken for each class.
    """
    table = np.asarray(counts, dtype=float)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    blue = to_rgb(COLOURS["blue"])
    shades = ListedColormap([(*blue, 0.6 * step) for step in np.linspace(0, 1, 101)])
    with sheet(height_in=3.0) as drawn:
        axes = drawn.axes
        axes.grid(visible=False)
        axes.imshow(shares, cmap=shades, norm=Normalize(0, 1), interpolation="none")
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        for row, column in np.ndindex(*table.shape) if len(names) <= _MAX_WRITTEN else ():
            text = f"{int(table[row, column]):,}\n{shares[row, column]:.0%}"
            axes.text(column, row, text, ha="center", va="center", size=9)
        axes.set_xlabel("taken for")
        axes.set_ylabel("is")
    return drawn.figure
