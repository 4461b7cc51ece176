from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from easysteer_data.plots import Curve, cosine_map, layer_curves, to_png, to_svg
from easysteer_data.plots.theme import COLOURS

HOSTILE = "<script>$x_1$ & 'more'"


@pytest.fixture
def figure() -> Figure:
    curves = [Curve(HOSTILE, [0.5, 0.7, None, 0.9], "test", [0.4, 0.6, None, 0.8], [0.6, 0.8, None, 1.0])]
    return layer_curves([0, 1, 2, 5], curves, y_label="AUROC", best_layer=5, chance=0.5)


def test_a_drawing_takes_its_colours_and_type_from_the_page(figure: Figure) -> None:
    svg = to_svg(figure, "one", "what is to be seen")
    assert f"var(--plot-orange, {COLOURS['orange']})" in svg
    named = re.findall(r"var\(--plot-\w+, (#[0-9a-f]{6})\)", svg)
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) == set(named) <= set(COLOURS.values())
    assert "DejaVu" not in svg
    assert "var(--plot-type, sans-serif)" in svg


def test_texts_in_a_drawing_are_texts_and_nothing_else(figure: Figure) -> None:
    root = ElementTree.fromstring(to_svg(figure, "one", 'said of "it" <b>'))
    assert root.get("aria-label") == 'said of "it" <b>'
    assert root.get("width") is None
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert HOSTILE in texts
    assert "AUROC" in texts
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_drawings_of_one_page_share_no_id_and_refer_to_their_own(figure: Figure) -> None:
    first, second = to_svg(figure, "one", "a"), to_svg(figure, "two", "b")
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', first)) <= ids[0]
    assert to_svg(figure, "one", "a") == first


def test_a_png_stands_on_white(figure: Figure) -> None:
    pixels = imread(io.BytesIO(to_png(figure)))
    assert pixels.shape == (590, 860, 4)
    np.testing.assert_array_equal(pixels[0, 0], np.ones(4))
    assert pixels[..., :3].min() < 0.3


def test_a_heat_map_is_transparent_where_directions_have_nothing_in_common() -> None:
    figure = cosine_map(["a", "b"], [[1.0, 0.0], [-1.0, 1.0]])
    (image,) = figure.axes[0].images
    red_green_blue_alpha = image.cmap(image.norm(np.array([0.0, 1.0, -1.0])))
    assert red_green_blue_alpha[0, 3] == pytest.approx(0, abs=0.01)
    assert red_green_blue_alpha[1, 2] > red_green_blue_alpha[1, 0]  # blue above 0, orange below
    assert red_green_blue_alpha[2, 0] > red_green_blue_alpha[2, 2]
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == ["1.00", "0.00", "-1.00", "1.00"]
