from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from easysteer_data.steer_trial import steer_report_json, steer_table
from easysteer_data.steer_trial.report import layers_name
from easysteer_data.steer_trial.result import (
    Best,
    Cell,
    Curve,
    Figure,
    Limits,
    Sample,
    SampleText,
    ScaleRange,
    ScoreInfo,
    SteerReport,
)


def curve(layers: tuple[int, ...], targets: Sequence[float], usable: ScaleRange) -> Curve:
    """At scales -1, 0 and 1; the perplexity is ten times the target."""
    cells = tuple(
        Cell(scale, {"probe": Figure(t, t - 0.5, t + 0.25, 9), "perplexity": Figure(10 * t, 0.0, 99.0, 9)})
        for scale, t in zip((-1.0, 0.0, 1.0), targets, strict=True)
    )
    return Curve(layers, cells, ScaleRange(-1, 1, 3), usable)


@pytest.fixture
def report() -> SteerReport:
    return SteerReport(
        model="tiny llama",
        data_set="feelings",
        estimator="diff_means",
        sign="from '0' to '1'",
        algorithm="direct",
        scale_unit="one step",
        prompts="9 given prompts",
        target="probe",
        limits=Limits(2.0, 0.5),
        scores=(
            ScoreInfo("perplexity", "perplexity", "of text"),
            ScoreInfo("probe", "logit", "logit of '1'"),
        ),
        curves=(
            curve((4,), (0.2, 0.5, 0.9), ScaleRange(0, 1, 2)),
            curve((5, 6), (-3.0, 0.5, 4.0), ScaleRange(-1, 0, 2)),
        ),
        samples=(
            Sample(
                "p",
                "Today I\nfeel",
                (
                    SampleText((), 0.0, "so so"),
                    SampleText((4,), 1.0, "well"),
                    SampleText((5, 6), -1.0, "low"),
                ),
            ),
        ),
    )


def test_the_best_cell_is_the_usable_one_that_changes_the_target_most_either_way(report: SteerReport) -> None:
    assert report.best == Best((5, 6), -1.0, -3.5)
    assert report.baseline.figures["probe"].value == 0.5


def test_without_a_usable_scale_there_is_no_best_cell(report: SteerReport) -> None:
    nowhere = SteerReport(
        **{name: getattr(report, name) for name in report.__slots__ if name != "curves"},
        curves=(curve((4,), (0.2, 0.5, 0.9), ScaleRange(0, 0, 1)),),
    )
    assert nowhere.best is None
    assert steer_report_json(nowhere)["best"] is None
    assert "no scale of this grid is usable" in steer_table(nowhere)


def test_the_json_holds_every_cell_and_is_plain(report: SteerReport) -> None:
    values = json.loads(json.dumps(steer_report_json(report), allow_nan=False))
    assert values["best"] == {"layers": [5, 6], "scale": -1.0, "change": -3.5}
    assert values["baseline"]["figures"]["probe"] == {"value": 0.5, "low": 0.0, "high": 0.75, "n": 9}
    assert values["curves"][1]["usable"] == {"lowest": -1, "highest": 0, "n_scales": 2}
    assert [one["text"] for one in values["samples"][0]["completions"]] == ["so so", "well", "low"]


def test_the_table_stars_usable_scales_and_shows_the_best_layers_texts(report: SteerReport) -> None:
    lines = steer_table(report).splitlines()
    assert lines[0] == "diff_means of feelings on tiny llama, direct: 9 given prompts"
    assert lines[1:3] == ["perplexity: of text", "target: logit of '1'"]
    start = lines.index("layers 5 to 6: probe rising from -1 to 1, usable from -1 to 0")
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        ["*", "-1", "-3.000", "-3.500", "to", "-2.750", "-30.000"],
        ["*", "0", "0.500", "0.000", "to", "0.750", "5.000"],
        ["1", "4.000", "3.500", "to", "4.250", "40.000"],
    ]
    assert [line.strip() for line in lines[-3:]] == ["Today I feel (layers 5 to 6)", "-1  low", "0  so so"]
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("layers", "name"), [((3,), "layer 3"), ((3, 4, 5), "layers 3 to 5"), ((3, 5), "layers 3, 5")]
)
def test_layers_are_named_briefly(layers: tuple[int, ...], name: str) -> None:
    assert layers_name(layers) == name
