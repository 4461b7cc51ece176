"""How every figure looks: size, type, and colours that stand for the same thing in all of them.

Knows the roles of lines, not their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

Role = Literal["validation", "test", "control", "baseline", "confound", "other"]
ColourName = Literal["ink", "faint", "rule", "blue", "orange", "green", "purple", "amber", "grey"]

# On a white ground; `export.to_svg` writes the names, so that a page can have others on a dark one. Each lies
# 4.5 : 1 or more from white, but for rules. Dashes and markers tell the same lines apart without colour.
COLOURS: Mapping[ColourName, str] = {
    "ink": "#1c1e21",
    "faint": "#5b616a",
    "rule": "#d9d6cf",
    "blue": "#0a5fa5",
    "orange": "#b94a12",
    "green": "#0f7352",
    "purple": "#84449a",
    "amber": "#7d6002",
    "grey": "#686f79",
}
ROLES: Mapping[Role, Mapping[str, Any]] = {
    "validation": {"color": COLOURS["blue"], "marker": "o", "linestyle": "-"},
    "test": {"color": COLOURS["orange"], "marker": "s", "linestyle": "-"},
    "control": {"color": COLOURS["grey"], "marker": "", "linestyle": "--"},
    "baseline": {"color": COLOURS["amber"], "marker": "", "linestyle": "-."},
    "confound": {"color": COLOURS["purple"], "marker": "D", "linestyle": ":"},
    "other": {"color": COLOURS["green"], "marker": "^", "linestyle": ":"},
}
# Lines that stand for nothing in particular, in the order in which they are drawn.
SERIES: tuple[Mapping[str, Any], ...] = (
    {"color": COLOURS["blue"], "marker": "o", "linestyle": "-"},
    {"color": COLOURS["orange"], "marker": "s", "linestyle": "-"},
    {"color": COLOURS["green"], "marker": "^", "linestyle": "--"},
    {"color": COLOURS["purple"], "marker": "D", "linestyle": "--"},
    {"color": COLOURS["amber"], "marker": "v", "linestyle": "-."},
    {"color": COLOURS["grey"], "marker": "x", "linestyle": ":"},
)

# Narrow enough that 10 pt stay readable where a phone shows the whole width in 345 pixels.
_WIDTH_IN = 4.3
_STYLE: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["faint"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": COLOURS["ink"],
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a dollar sign in a name starts no formula
    "xtick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.color": COLOURS["faint"],
    "ytick.labelcolor": COLOURS["ink"],
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure that is being drawn and its one pair of axes."""

    figure: Figure
    axes: Axes


@contextmanager
def sheet(height_in: float = 2.95, width_in: float = _WIDTH_IN) -> Iterator[Sheet]:
    """A new figure in this style; what is drawn on it inside the context has the style too.

    No pyplot: it keeps figures in process-wide state and looks for a display.
    """
    with mpl.rc_context(dict(_STYLE)):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield Sheet(figure, figure.subplots())


class _PlainLogFormatter(LogFormatter):
    """Labels of a logarithmic axis as plain numbers: matplotlib's own are formulas, which are off here."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def log_values(drawn: Sheet) -> None:
    """A logarithmic axis of values; smaller steps have labels where it spans few powers of ten."""
    axis = drawn.axes.yaxis
    drawn.axes.set_yscale("log")
    axis.set_major_formatter(_PlainLogFormatter())
    axis.set_minor_formatter(_PlainLogFormatter(minor_thresholds=(2, 0.4)))


def legend_below(drawn: Sheet, n_columns: int = 2) -> None:
    """A legend under the axes, where it covers no line."""
    handles, labels = drawn.axes.get_legend_handles_labels()
    if labels:
        drawn.figure.legend(handles, labels, loc="outside lower center", ncols=min(n_columns, len(labels)))
