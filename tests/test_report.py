from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from easysteer_data.probes import (
    BestLayer,
    Figure,
    LayerResult,
    PositionResult,
    ProbeReport,
    Provenance,
    Transfer,
)
from easysteer_data.probes.result import SplitCounts
from easysteer_data.report import table, write_report


def layer(number: int, val_auroc: float, test_accuracy: float, test_auroc: float) -> LayerResult:
    return LayerResult(
        number,
        {"auroc": Figure(val_auroc)},
        {
            "accuracy": Figure(test_accuracy, test_accuracy - 0.1, test_accuracy + 0.05),
            "auroc": Figure(test_auroc, test_auroc - 0.05, test_auroc + 0.025),
        },
        {"accuracy": Figure(0.5), "auroc": Figure(0.45)},
    )


def counts(n: int) -> SplitCounts:
    return SplitCounts(n, n, n // 2, n)


@pytest.fixture
def report() -> ProbeReport:
    return ProbeReport(
        kind="logistic",
        settings={"C": 1.0},
        task="classes",
        label_names=("false", "true"),
        layers=(layer(0, 0.55, 0.5, 0.6), layer(4, 0.9, 0.8125, 0.875), layer(12, 0.85, 0.9, 0.95)),
        counts={"train": counts(300), "validation": counts(80), "test": counts(100)},
        provenance=Provenance(
            "run", "abc123", "city statements", "tiny llama", "hidden_states", "made up", {}
        ),
        best_layer=4,
        details=BestLayer(),
        baselines={"majority": {"accuracy": Figure(0.5), "auroc": Figure(0.5)}},
    )


def test_the_json_is_the_reports(report: ProbeReport, tmp_path: Path) -> None:
    write_report(report, tmp_path / "new" / "folder")
    found = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert found == json.loads(json.dumps(report.to_json()))
    assert (found["best_layer"], found["test_auroc"], found["n_train"]) == (4, 0.875, 300)


def test_a_report_replaces_an_older_one_and_leaves_nothing_else(report: ProbeReport, tmp_path: Path) -> None:
    write_report(replace(report, best_layer=0), tmp_path)
    write_report(report, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.png"]
    assert json.loads((tmp_path / "report.json").read_text())["best_layer"] == 4


def test_the_plot_draws_lines_control_and_the_best_layer(report: ProbeReport, tmp_path: Path) -> None:
    write_report(report, tmp_path)

    pixels = (imread(tmp_path / "report.png")[..., :3] * 255).round().astype(int)
    assert pixels.shape == (720, 1200, 3)
    colours = ("0072B2", "D55E00", "009E73", "CC79A7", "555555")
    for colour in ([int(text[i : i + 2], 16) for i in (0, 2, 4)] for text in colours):
        assert (np.abs(pixels - colour).max(axis=-1) < 3).sum() > 50
    # Layer 4 of 0 to 12 is marked from the bottom to the top of the axes, a third along them.
    marked = np.abs(pixels - 224).max(axis=-1) < 3
    column = int(marked.sum(axis=0).argmax())
    assert marked[:, column].sum() > 150
    assert 400 < column < 550


def test_the_plot_of_a_single_layer_with_long_names_is_drawn(report: ProbeReport, tmp_path: Path) -> None:
    provenance = replace(report.provenance, data_set="$long_{ " * 40, model="m" * 200)
    write_report(replace(report, layers=report.layers[1:2], provenance=provenance), tmp_path)
    assert imread(tmp_path / "report.png").shape == (720, 1200, 4)


def test_the_table_marks_the_best_layer_and_sets_it_beside_its_controls(report: ProbeReport) -> None:
    assert table(report).splitlines() == [
        "Logistic probe on city statements, tiny llama",
        "",
        "  layer  validation AUROC  test accuracy  test AUROC  selectivity",
        "      0             0.550          0.500       0.600        0.000",
        "*     4             0.900          0.812       0.875        0.312",
        "     12             0.850          0.900       0.950        0.400",
        "",
        "* best layer on validation; its test figures:",
        "                   value     interval  shuffled labels  majority",
        "         accuracy  0.812  0.713-0.863            0.500     0.500",
        "            auroc  0.875  0.825-0.900            0.450     0.500",
        "rows: 300 train, 80 validation, 100 test",
    ]


def test_numbers_have_their_own_columns(report: ProbeReport, tmp_path: Path) -> None:
    test = {"r2": Figure(0.5, 0.4, 0.6), "mae": Figure(2.0, 1.0, 3.0), "spearman": Figure(None)}
    numeric = replace(
        report,
        kind="ridge",
        task="numeric",
        label_names=(),
        layers=(LayerResult(4, {"r2": Figure(0.45)}, test),),
        baselines={},
    )
    lines = table(numeric).splitlines()
    assert lines[2:4] == [
        "  layer  validation R2  test error  test R2",
        "*     4          0.450       2.000    0.500",
    ]
    assert "         spearman      -            -" in lines
    write_report(numeric, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["test_auroc"] is None


def test_positions_and_other_data_sets_are_told(report: ProbeReport) -> None:
    told = replace(
        report,
        positions=(PositionResult(-2, report.layers, 4), PositionResult(-1, report.layers, 4)),
        position=-1,
        transfer=Transfer(
            ("city statements", "other"), ("a", "b"), (4, 0), {"auroc": ((0.875, 0.6), (0.5, None))}
        ),
    )
    text = table(told)
    assert "*     -1      4             0.900          0.812       0.875" in text
    assert "  1 city statements                 0.875  0.600" in text
    assert "  2 other                           0.500  -" in text


def test_the_table_fits_80_columns_with_large_numbers_and_long_names(report: ProbeReport) -> None:
    large = replace(
        report,
        counts={name: counts(99_000_000) for name in ("train", "validation", "test")},  # type: ignore[misc]
        provenance=replace(report.provenance, data_set="name " * 40, model="m" * 99),
        baselines={**report.baselines, "bag_of_tokens": report.layers[0].test},
    )
    assert max(len(line) for line in table(large).splitlines()) <= 80
