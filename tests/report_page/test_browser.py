"""The report in a real browser: on a phone and a desk, light and dark, it is whole, legible and inert."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_CHECKS = (Path(__file__).parent / "page_checks.js").read_text()
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_VIEWS = [(375, "light"), (375, "dark"), (1280, "light"), (1280, "dark")]


@dataclass(frozen=True)
class Opened:
    """A page, its width and scheme, and what it asked for and complained of."""

    page: Page
    width: int
    scheme: str
    requests: list[str]
    complaints: list[str]

    def measure(self, name: str) -> Any:
        """What a function of page_checks.js returns."""
        return self.page.evaluate(f"{_CHECKS.rstrip()}.{name}()")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.fail("no browser: apt-get install chromium, or set CHROMIUM to the path of one")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module", params=_VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def opened(request: pytest.FixtureRequest, browser: Browser, experiment: Path) -> Iterator[Opened]:
    """The report with everything unfolded."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda asked: requests.append(asked.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((experiment / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
    yield Opened(page, width, scheme, requests, complaints)
    context.close()


def test_nothing_is_wider_than_the_window(opened: Opened) -> None:
    assert opened.page.evaluate("document.scrollingElement.scrollWidth") <= opened.width
    assert opened.measure("outside") == []


def test_every_section_is_in_sight(opened: Opened) -> None:
    titles = [heading.inner_text() for heading in opened.page.locator("h2").all() if heading.is_visible()]
    assert titles == [
        "Summary",
        "Probe",
        "Token by token",
        "Steering vectors",
        "Steered generation",
        "Sweep",
        "Captured run and provenance",
    ]


def test_every_figure_is_drawn_and_described(opened: Opened, experiment: Path) -> None:
    figures = opened.measure("figures")
    assert len(figures) == len(list((experiment / "figures").glob("*.png")))
    for figure in figures:
        assert figure["role"] == "img"
        assert len(figure["description"]) > 30
        assert figure["height"] > 150
    widths = opened.measure("imageWidths")  # of heat maps; an image that can't be decoded is an error
    assert len(widths) >= 3
    assert min(widths) >= 2


def test_type_in_figures_is_readable(opened: Opened) -> None:
    assert min(opened.measure("typeSizes")) >= 9


def test_every_text_stands_out_from_its_ground(opened: Opened) -> None:
    found = opened.measure("contrasts")
    assert len(found) > 300
    assert [text for text in found if text["contrast"] < text["wanted"]] == []


def test_the_page_is_dark_where_the_reader_wants_it_dark(opened: Opened) -> None:
    ground, ink = (sum(map(int, colour[4:-1].split(","))) / 3 for colour in opened.measure("colours"))
    assert (ground < 40 and ink > 200) if opened.scheme == "dark" else (ground > 240 and ink < 60)


def test_the_page_asks_for_nothing_and_complains_of_nothing(opened: Opened, experiment: Path) -> None:
    asked = [url for url in opened.requests if not url.startswith("data:")]
    assert asked == [(experiment / "report.html").as_uri()]
    assert opened.complaints == []


def test_texts_of_the_data_set_stay_texts(opened: Opened) -> None:
    assert opened.page.evaluate("window.owned === undefined && !document.querySelector('img, script')")
    assert opened.page.locator("h1").inner_text() == "<b>made</b> & up"
    for section in ("probe", "tokens", "steering", "sweep"):
        shown = opened.page.locator(f"#{section}").inner_text()
        assert "<script>window.owned = true</script>" in shown, section


def test_the_outline_is_sound(opened: Opened) -> None:
    outline = opened.measure("outline")
    assert outline["levels"].count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(outline["levels"]))
    assert outline["bareTables"] == 0
    assert len(outline["ids"]) == len(set(outline["ids"]))
    assert set(outline["targets"]) <= set(outline["ids"])
