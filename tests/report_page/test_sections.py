"""Results of every shape make a page: classes, numbers, positions, no validation split, no usable scale."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from easysteer_data.errors import RunError
from easysteer_data.notebook import fit_probe, fit_vector, open_run
from easysteer_data.report_page import probe_section, render, vector_section
from easysteer_data.report_page.content import Page, Section
from easysteer_data.report_page.run import run_section
from easysteer_data.report_page.steering import steering_section
from easysteer_data.steer_trial.report import steer_report_json
from easysteer_data.vectors import vector_report_json
from tests.report_page.made import steer_report
from tests.runs import MadeRows, labelled_rows, write_run
from tests.vectors.made import paired_rows, train_only


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(values))
    return read


def page_of(*sections: Section) -> str:
    return render(Page("made", "model on data", sections, []))


def names(section: Section) -> Sequence[str]:
    return [figure.name for figure in section.figures]


def probe_of(folder: Path, rows: MadeRows, kind: Any = "logistic", **settings: Any) -> dict[str, Any]:
    run = open_run(write_run(folder, rows))
    given = {"bootstrap": 20, "bag_of_tokens": False} | settings
    return plain(fit_probe(run, kind, **given).report.to_json())


def test_three_classes_have_a_curve_each_and_a_confusion_of_nine(tmp_path: Path) -> None:
    report = probe_of(tmp_path / "run", labelled_rows([1.0, 3.0], n_classes=3))
    section = probe_section(report, lambda index: f"text {index}")
    roc = next(figure.figure for figure in section.figures if figure.name == "probe-roc")
    assert [text.get_text() for text in roc.legends[0].get_texts()] == [
        f"'{k}' against the rest" for k in "abc"
    ]
    confusion = next(figure.figure for figure in section.figures if figure.name == "probe-confusion")
    assert len(confusion.axes[0].texts) == 9
    assert f"text {report['best']['top'][0]['prompt']}" in page_of(section)


def test_numbers_have_predictions_in_place_of_curves(tmp_path: Path) -> None:
    rows = labelled_rows([1.0, 3.0], n_rows=200)
    numeric = replace(rows, label_kind="numeric", labels=[float(value) for value in rows.x[:, 1, 3]])
    section = probe_section(probe_of(tmp_path / "run", numeric, "ridge"), lambda _: None)
    assert names(section) == ["probe-r2", "probe-predictions"]
    assert "R²" in page_of(section)


def test_positions_are_compared(tmp_path: Path) -> None:
    rows = labelled_rows([1.0, 3.0], n_rows=200)
    twice = replace(rows, x=np.repeat(rows.x, 2, axis=0), n_rows=[2] * 200)
    report = probe_of(tmp_path / "run", twice, data={"rows": {"positions": [0, 1]}}, by_position=True)
    section = probe_section(report, lambda _: None)
    assert names(section)[-1] == "probe-positions"
    assert "Rows of position" in page_of(section)


def test_without_intervals_and_controls_there_are_none_on_the_page(tmp_path: Path) -> None:
    report = probe_of(tmp_path / "run", labelled_rows([1.0, 3.0]), bootstrap=0, control=False)
    page = page_of(probe_section(report, lambda _: None))
    assert "interval over groups" not in page
    assert "shuffled labels" not in page


def test_a_vector_without_validation_names_no_best_layer(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", train_only(paired_rows(20))))
    section = vector_section(plain(vector_report_json(fit_vector(run).report)))
    assert section.key_figures[0].note == "no validation split to choose a layer on"
    assert "diff_means" in page_of(section)


def test_a_trial_without_a_usable_scale_says_so() -> None:
    report = plain(steer_report_json(steer_report()))
    for curve in report["curves"]:
        curve["usable"] = {"lowest": 0.0, "highest": 0.0, "n_scales": 1}
    section = steering_section(report | {"best": None})
    assert section.key_figures[0].value == "none usable"
    assert "usable range" not in page_of(section)


def test_a_part_that_the_template_needs_and_a_report_lacks_is_named() -> None:
    report = plain(steer_report_json(steer_report()))
    del report["limits"]["repetition"]
    with pytest.raises(
        RunError, match=r"Steered generation: what its stage wrote lacks a part.*'repetition'"
    ):
        page_of(steering_section(report))


def test_a_run_tells_its_gates_and_where_it_comes_from(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", paired_rows(10)))
    page = page_of(run_section(run))
    assert "made-for-a-test" in page
    assert "a0a0" in page  # of the model's hash
    assert "would have stopped the capture" in page
    run.manifest.measured["gates"] = {"zero": 3}  # type: ignore[index]
    assert "that were counted" in page_of(run_section(run))
