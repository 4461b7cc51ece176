"""What is drawn is what was given, read back from the axes."""

from __future__ import annotations

import numpy as np
import pytest

from easysteer_data.plots import (
    CalibrationBin,
    Curve,
    DoseLine,
    Flags,
    RocLine,
    calibration_curve,
    confusion_matrix,
    cosine_map,
    dose_response,
    layer_curves,
    predicted_numbers,
    roc_curve,
    to_png,
)


def test_a_curve_has_its_values_gaps_and_band() -> None:
    curve = Curve("test", [0.5, None, 0.9], "test", [0.4, None, 0.8], [0.6, None, 1.0])
    figure = layer_curves([0, 4, 8], [curve], y_label="AUROC")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 4, 8])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [0.5, np.nan, 0.9])
    (band,) = axes.collections
    corners = {tuple(point) for path in band.get_paths() for point in path.vertices.tolist()}
    assert {(0, 0.4), (0, 0.6), (8, 0.8), (8, 1.0)} <= corners
    assert not any(x == 4 for x, _ in corners)


def test_the_chosen_layer_and_flagged_layers_are_marked() -> None:
    figure = layer_curves(
        [0, 4, 8], [Curve("a", [1.0, 2.0, 3.0])], y_label="y", best_layer=4, flags=Flags([0, 8], "beware")
    )
    best, _, flags = figure.axes[0].lines
    assert set(best.get_xdata()) == {4}
    assert list(flags.get_xdata()) == [0, 8]
    assert "layer 4" in figure.get_suptitle()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "beware"]


def test_roles_have_one_look_in_every_figure() -> None:
    drawn = [
        layer_curves(
            [0, 1], [Curve("x", [0, 1])] * before + [Curve("control", [0, 0], "control")], y_label="y"
        )
        for before in (0, 3)
    ]
    looks = {
        (line.get_color(), line.get_linestyle()) for line in (figure.axes[0].lines[-1] for figure in drawn)
    }
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("norms", "labels"),
    [([1.0, 1000.0], {"1", "10", "100", "1000"}), ([0.02, 0.07], {"0.02", "0.03", "0.04", "0.06"})],
)
def test_a_logarithmic_axis_has_plain_numbers(norms: list[float], labels: set[str]) -> None:
    figure = layer_curves([0, 1], [Curve("norm", norms)], y_label="norm", log=True)
    axis = figure.axes[0]
    assert axis.get_yscale() == "log"
    figure.draw_without_rendering()
    drawn = {tick.get_text() for minor in (False, True) for tick in axis.get_yticklabels(minor=minor)}
    assert labels <= drawn
    assert not any("$" in label for label in drawn)


def test_roc_and_calibration_are_drawn_beside_their_diagonal() -> None:
    roc = roc_curve([RocLine("true", (0.0, 0.2, 1.0), (0.0, 0.9, 1.0))])
    assert [list(line.get_ydata()) for line in roc.axes[0].lines] == [[0, 1], [0.0, 0.9, 1.0]]
    bins = [CalibrationBin(0.1, 0.2, 10), CalibrationBin(0.9, 0.7, 30)]
    calibration = calibration_curve(bins, "predicted", "observed")
    assert list(calibration.axes[0].lines[1].get_ydata()) == [0.2, 0.7]
    areas = calibration.axes[0].collections[0].get_sizes()
    assert areas[1] > areas[0]


def test_a_confusion_matrix_writes_counts_and_shares_of_the_true_class() -> None:
    figure = confusion_matrix(["no", "yes"], [[3, 1], [0, 0]])
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == ["3\n75%", "1\n25%", "0\n0%", "0\n0%"]


def test_a_dose_response_marks_the_usable_scales() -> None:
    line = DoseLine("layer 4", [-1, 0, 1], [0.2, 0.5, None], [0.1, 0.4, None], [0.3, 0.6, None])
    figure = dose_response([line], y_label="p", usable=(-1, 0))
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.lines[-1].get_ydata(), [0.2, 0.5, np.nan])
    (span,) = axes.patches
    assert (span.get_x(), span.get_width()) == (-1, 1)


def test_predictions_lie_on_the_diagonal_where_they_are_right() -> None:
    figure = predicted_numbers([1.0, 2.0], [1.0, 2.5])
    points = figure.axes[0].collections[0].get_offsets()
    np.testing.assert_array_equal(points, [[1.0, 1.0], [2.0, 2.5]])


@pytest.mark.parametrize("n_layers", [1, 80])
def test_one_layer_and_many_are_drawn_without_a_warning(n_layers: int) -> None:
    layers = list(range(n_layers))
    to_png(layer_curves(layers, [Curve("a", [0.5] * n_layers)], y_label="y", best_layer=0, chance=0.5))
    to_png(cosine_map([str(layer) for layer in layers], np.eye(n_layers).tolist(), "layer"))
