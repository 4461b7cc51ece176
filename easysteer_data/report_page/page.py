"""Turns a page's content into report.html and its figures into PNG files. Measures nothing, reads no run."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from easysteer_data.errors import RunError
from easysteer_data.plots import to_png, to_svg
from easysteer_data.report_page.content import Page, PageFigure, Section
from easysteer_data.report_page.words import number
from easysteer_data.shards.durable import make_folder, write_durably

HTML_NAME = "report.html"
FIGURES = "figures"


def write_page(page: Page, out: Path) -> None:
    """Write report.html and figures/*.png to a folder, each whole or not at all.

    The page needs no other file, no network and no script; texts of prompts and models are escaped.
    """
    make_folder(out / FIGURES)
    for section in page.sections:
        for figure in section.figures:
            write_durably(out / FIGURES / f"{figure.name}.png", to_png(figure.figure))
    write_durably(out / HTML_NAME, render(page).encode())


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("easysteer_data.report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    leads = {section.lead_figure for section in page.sections}
    drawn = {figure.name: _drawn(figure) for section in page.sections for figure in section.figures}
    bodies = [(section, _body(environment, section, drawn, leads)) for section in page.sections]
    style = resources.files(__package__).joinpath("templates", "style.css").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(style),  # noqa: S704 - our own file
        lead=[figure for name, figure in drawn.items() if name in leads],
        bodies=bodies,
    )


def _drawn(figure: PageFigure) -> dict[str, object]:
    # Matplotlib escapes the texts in a drawing.
    svg = Markup(to_svg(figure.figure, figure.name, figure.description))  # noqa: S704
    return {"title": figure.title, "caption": figure.caption, "svg": svg}


def _body(
    environment: Environment, section: Section, drawn: dict[str, dict[str, object]], leads: set[str | None]
) -> Markup:
    """A section without its heading, and without the figures that stand at the top of the page."""
    figures = [drawn[figure.name] for figure in section.figures if figure.name not in leads]
    template = environment.get_template(section.template)
    try:
        return Markup(template.render(**section.values, figures=figures))  # noqa: S704 - the template escapes
    except UndefinedError as error:
        raise RunError(
            f"{section.title}: what its stage wrote lacks a part ({error}); run it again"
        ) from error
