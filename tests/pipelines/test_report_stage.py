"""The report as a user builds it, and what is said of an experiment that is not as it should be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest

from easysteer_data.errors import RunError
from easysteer_data.settings import ExperimentSettings
from pipelines.report import stage
from pipelines.stage import CONF, settings_of
from tests.report_page.made import write_experiment
from tests.tiny import save_tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return write_experiment(tmp_path_factory.mktemp("made"), model)


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """An experiment's folder of the test's own."""
    return shutil.copytree(made, tmp_path / "out")


def composed(out: Path, model: Path, *overrides: str) -> ExperimentSettings:
    given = [f"out={out}", f"model.path={model}", *overrides]
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        return settings_of(hydra.compose("report", overrides=given))


def sections(out: Path) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', (out / "report.html").read_text())


def test_the_command_writes_the_page_and_a_png_for_each_figure(out: Path, model: Path) -> None:
    command = [sys.executable, "-m", "pipelines.report", "name=mine", f"out={out}", f"model.path={model}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"written: {out}/report.html" in done.stdout
    page = (out / "report.html").read_text()
    assert "<h1>mine</h1>" in page
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)", page)
    pngs = sorted((out / "figures").glob("*.png"))
    assert len(pngs) == page.count("<figcaption>") - page.count('class="tokens"')
    assert all(png.read_bytes().startswith(b"\x89PNG") for png in pngs)


def test_a_confounded_vector_stands_beside_the_balanced_one(out: Path, model: Path) -> None:
    stage(composed(out, model))
    page = (out / "report.html").read_text()
    report = json.loads((out / "vector_report.json").read_text())
    figures = {}
    for one in report["estimators"]:
        (best,) = [layer for layer in one["layers"] if layer["layer"] == one["best_layer"]]
        figures[one["name"]] = best["test"]["pair_accuracy"]
    assert figures["diff_means_balanced"] > figures["diff_means"]
    notice = " ".join(re.sub(r"<[^>]+>", "", page[page.index('class="notice"') :].split("</div>")[0]).split())
    assert "Confounded by letter: diff_means." in notice
    for value in figures.values():
        assert f"{value:.3f}" in notice


def test_chosen_prompts_are_shown_token_by_token(out: Path, model: Path) -> None:
    stage(composed(out, model, "report.prompts=[2,6]"))
    page = (out / "report.html").read_text()
    assert "Zürich 🙂" in re.sub(r"<[^>]+>", "", page[page.index('<section id="tokens"') :])
    assert page.count('class="tokens"') == 2
    with pytest.raises(RunError, match="there is no prompt 99, only 0 to 39"):
        stage(composed(out, model, "report.prompts=[99]"))
