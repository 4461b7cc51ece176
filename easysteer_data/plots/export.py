"""A figure as PNG, and as SVG that takes its colours and type from the page it stands in."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from easysteer_data.plots.theme import COLOURS

_PNG_DPI = 200
_FAMILY = re.compile(r"'DejaVu Sans'(?:, [^;\"]+)?")
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def to_png(figure: Figure) -> bytes:
    """The figure on a white ground, 200 dots an inch."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_PNG_DPI, facecolor="white", metadata={"Software": None})
    return image.getvalue()


def to_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an `<svg>` element to stand in an HTML page, on a transparent ground.

    Its colours are `var(--plot-NAME, COLOUR)` for the names of `theme.COLOURS`, its type is the page's
    `var(--plot-type)`, it is as wide as the page lets it be, and its text is text.

    Args:
        figure: the figure.
        name: different for each figure of a page; ids begin with it.
        description: what a reader who doesn't see the figure is told.
    """
    drawing = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawing.getvalue()
    svg = text[text.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]+"', svg)
    spaces = 'xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg"'
    opening = f'<svg {spaces} {box[0] if box else ""} role="img" aria-label="{escape(description)}">'
    svg = opening + svg[svg.index(">") + 1 :]
    svg = _ID.sub(rf"\g<1>{name}-", svg)
    for colour_name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--plot-{colour_name}, {colour})")
    return _FAMILY.sub("var(--plot-type, sans-serif)", svg)
