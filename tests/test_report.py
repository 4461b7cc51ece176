from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from easysteer_data.probes import LayerResult, ProbeReport
from easysteer_data.report import table, write_report


@pytest.fixture
def report() -> ProbeReport:
    layers = (
        LayerResult(0, val_auroc=0.55, test_accuracy=0.5, test_auroc=0.6),
        LayerResult(4, val_auroc=0.9, test_accuracy=0.8125, test_auroc=0.875),
        LayerResult(12, val_auroc=0.85, test_accuracy=0.9, test_auroc=0.95),
    )
    return ProbeReport(layers, 300, 80, 100, ("false", "true"), "abc123", "city statements", "tiny llama")


def test_the_json_holds_every_layer_and_the_best_on_validation(report: ProbeReport, tmp_path: Path) -> None:
    write_report(report, tmp_path / "new" / "folder")

    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text()) == {
        "layers": [
            {"layer": 0, "val_auroc": 0.55, "test_accuracy": 0.5, "test_auroc": 0.6},
            {"layer": 4, "val_auroc": 0.9, "test_accuracy": 0.8125, "test_auroc": 0.875},
            {"layer": 12, "val_auroc": 0.85, "test_accuracy": 0.9, "test_auroc": 0.95},
        ],
        "best_layer": 4,
        "test_auroc": 0.875,
        "test_accuracy": 0.8125,
        "n_train": 300,
        "n_validation": 80,
        "n_test": 100,
        "label_names": ["false", "true"],
        "run_fingerprint": "abc123",
        "data_set": "city statements",
        "model": "tiny llama",
    }


def test_a_report_replaces_an_older_one_and_leaves_nothing_else(report: ProbeReport, tmp_path: Path) -> None:
    write_report(replace(report, n_train=1), tmp_path)
    write_report(report, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.png"]
    assert json.loads((tmp_path / "report.json").read_text())["n_train"] == 300


def test_the_plot_draws_three_lines_and_the_best_layer(report: ProbeReport, tmp_path: Path) -> None:
    write_report(report, tmp_path)

    pixels = (imread(tmp_path / "report.png")[..., :3] * 255).round().astype(int)
    assert pixels.shape == (720, 1200, 3)
    for colour in ([0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00], [0x00, 0x9E, 0x73], [0x55, 0x55, 0x55]):
        assert (np.abs(pixels - colour).max(axis=-1) < 3).sum() > 50
    # Layer 4 of 0 to 12 is marked from the bottom to the top of the axes, a third along them.
    marked = np.abs(pixels - 224).max(axis=-1) < 3
    column = int(marked.sum(axis=0).argmax())
    assert marked[:, column].sum() > 300
    assert 400 < column < 550


def test_the_plot_of_a_single_layer_with_long_names_is_drawn(report: ProbeReport, tmp_path: Path) -> None:
    write_report(
        replace(report, layers=report.layers[:1], data_set="$long_{ " * 40, model="m" * 200), tmp_path
    )
    assert imread(tmp_path / "report.png").shape == (720, 1200, 4)


def test_the_table_marks_the_best_layer(report: ProbeReport) -> None:
    assert table(report).splitlines() == [
        "Linear probe on city statements, tiny llama",
        "",
        "  layer  validation AUROC  test accuracy  test AUROC",
        "      0             0.550          0.500       0.600",
        "*     4             0.900          0.812       0.875",
        "     12             0.850          0.900       0.950",
        "",
        "* best layer on validation",
        "rows: 300 train, 80 validation, 100 test",
    ]


def test_the_table_fits_80_columns_with_large_numbers_and_long_names(report: ProbeReport) -> None:
    large = replace(
        report,
        n_train=99_000_000,
        n_validation=9_000_000,
        n_test=9_000_000,
        data_set="name " * 40,
        model="m" * 99,
    )
    assert max(len(line) for line in table(large).splitlines()) <= 80
