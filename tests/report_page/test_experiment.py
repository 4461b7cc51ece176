"""Which parts a report has, and what is said of an experiment that is not as it should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from easysteer_data.errors import RunError
from easysteer_data.notebook import open_run
from easysteer_data.probes import load_probe
from easysteer_data.report_page import read_page
from easysteer_data.report_page.content import Page
from tests.report_page.made import FINGERPRINT

EVERYTHING = {"probe", "tokens", "vectors", "steering", "sweep", "run"}


@pytest.fixture
def out(experiment: Path, tmp_path: Path) -> Path:
    """An experiment's folder of the test's own."""
    return shutil.copytree(experiment, tmp_path / "out")


def page_of(out: Path, model: Path) -> Page:
    return read_page("made", out, out / "capture", str(model))


def anchors(page: Page) -> set[str]:
    return {section.anchor for section in page.sections}


@pytest.mark.parametrize(
    ("missing", "gone", "said"),
    [
        ("report.json", {"probe", "tokens"}, "pipelines.train_probe writes it"),
        ("vector_report.json", {"vectors"}, "pipelines.fit_vector writes it"),
        ("steer_report.json", {"steering"}, "pipelines.steer writes it"),
        ("probe.safetensors", {"tokens"}, "pipelines.train_probe writes it"),
        ("capture", {"run", "tokens"}, "no such folder"),
    ],
)
def test_what_is_missing_is_left_out_and_told(
    out: Path, tokenizer_folder: Path, missing: str, gone: set[str], said: str
) -> None:
    path = out / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = page_of(out, tokenizer_folder)
    assert anchors(page) == EVERYTHING - gone
    assert len(page.absent) == len(gone)
    assert any(said in absent.reason for absent in page.absent)
    assert page.subtitle == "made-up-model on made-up-corpus"


def test_an_experiment_that_was_not_swept_says_nothing_of_sweeps(out: Path, tokenizer_folder: Path) -> None:
    (out / "summary.csv").unlink()
    page = page_of(out, tokenizer_folder)
    assert anchors(page) == EVERYTHING - {"sweep"}
    assert page.absent == []


def test_an_experiment_of_nothing_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing to report; run capture, train_probe"):
        page_of(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("report.json", "{", r"report\.json: can't be read .*run its stage again"),
        ("report.json", '{"selected_by": "auroc"}', r"report\.json: is not as .*pipelines\.train_probe"),
        ("vector_report.json", "[]", r"vector_report\.json: is no JSON object"),
        ("steer_report.json", '{"best": null}', r"steer_report\.json: is not as .*pipelines\.steer"),
        ("probe.safetensors", "no tensors", r"probe\.safetensors: can't be read as a probe"),
        ("summary.csv", "", r"summary\.csv: is empty"),
    ],
)
def test_a_damaged_file_is_named(
    out: Path, tokenizer_folder: Path, name: str, contents: str, message: str
) -> None:
    (out / name).write_text(contents)
    with pytest.raises(RunError, match=message):
        page_of(out, tokenizer_folder)


def test_texts_are_not_told_from_another_run_than_the_probes(out: Path, tokenizer_folder: Path) -> None:
    report = (out / "report.json").read_text()
    (out / "report.json").write_text(report.replace(FINGERPRINT, "another"))
    page = page_of(out, tokenizer_folder)
    assert anchors(page) == EVERYTHING - {"tokens"}
    assert "the probe was fitted on another run" in page.absent[0].reason
    probe = next(section for section in page.sections if section.anchor == "probe")
    assert "The city of" not in str(probe.values["ends"])


def test_tokens_are_not_told_by_another_tokenizer(out: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tokenizer_folder, tmp_path / "other")
    settings = json.loads((other / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary["."], vocabulary["x"] = vocabulary["x"], vocabulary["."]
    (other / "tokenizer.json").write_text(json.dumps(settings))
    page = page_of(out, other)
    assert "is not the one that the run was made with" in page.absent[0].reason


def test_the_score_of_a_token_is_that_of_its_row(out: Path, tokenizer_folder: Path) -> None:
    page = read_page("made", out, out / "capture", str(tokenizer_folder), prompts=[2])
    (shown,) = next(section for section in page.sections if section.anchor == "tokens").values["prompts"]
    assert "".join(token.text for token in shown["tokens"]) == "The city of Zürich 🙂 is in Norway."
    run, probe = open_run(out / "capture"), load_probe(out / "probe.safetensors")
    tensors = probe.tensors()
    rows = run.rows(layer=4)[run.index.prompt == 2].double()
    expected = ((rows - tensors["mean"][1]) / tensors["std"][1]) @ tensors["weight"][1, 0] + tensors["bias"][
        1
    ]
    torch.testing.assert_close(torch.tensor([token.score for token in shown["tokens"]]), expected.float())
