"""What a report page is made of: sections, their figures and key figures. Knows neither HTML nor files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure and what is said of it.

    Attributes:
        name: letters, digits and "-", different for each figure of a page; names its PNG.
        title: a few words above it.
        caption: what is to be seen, for a reader who sees it.
        description: the same with its main numbers, for one who does not.
        figure: the drawing.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number that sums an experiment up.

    Attributes:
        label: what it is.
        value: the number, as text.
        note: where it comes from, its interval.
        warns: whether the reader should doubt what it stands beside.
    """

    label: str
    value: str
    note: str = ""
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        anchor: its id in links.
        title: its heading.
        template: file in templates/ that its body is rendered with.
        values: what the template shows, by name; texts are escaped there.
        figures: its figures.
        key_figures: what the top of the page shows of it.
        lead_figure: name of the figure that the top of the page shows, None = none.
    """

    anchor: str
    title: str
    template: str
    values: Mapping[str, object] = field(default_factory=dict)
    figures: Sequence[PageFigure] = ()
    key_figures: Sequence[KeyFigure] = ()
    lead_figure: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A part that the experiment does not have (yet).

    Attributes:
        title: what it would be.
        reason: why it is not there, and what makes it.
    """

    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report.

    Attributes:
        title: of the experiment.
        subtitle: model and data set.
        sections: in order.
        absent: what is left out.
    """

    title: str
    subtitle: str
    sections: Sequence[Section]
    absent: Sequence[Absent]
