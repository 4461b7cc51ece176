"""Steering vectors as a user fits them: from the command line, on a run that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch

from easysteer_data.errors import SettingsError
from easysteer_data.settings import ExperimentSettings
from easysteer_data.vectors import import_gguf, load_vector
from pipelines.fit_vector import stage
from pipelines.stage import CONF, settings_of
from tests.runs import write_run
from tests.vectors.made import paired_rows, train_only

ROOT = Path(__file__).parents[2]


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.fit_vector", *arguments, "experiment=demo", f"out={out}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def composed(out: Path, *overrides: str) -> ExperimentSettings:
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        return settings_of(hydra.compose("fit_vector", overrides=[f"out={out}", *overrides]))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose capture is a run with letters."""
    folder = tmp_path_factory.mktemp("out")
    write_run(folder / "capture", paired_rows(letter=6.0))
    return folder


def test_several_estimators_are_compared_and_the_best_is_written(out: Path) -> None:
    done = run(out, "vector=balanced", "vector.export=[gguf,npy]")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "diff_means: CONFOUNDED: 3 of 3 layers tell letter apart better than the classes" in lines
    starred = [line.split()[1] for line in lines if line.startswith("* ") and "best layer" not in line]
    report = json.loads((out / "vector_report.json").read_text())
    assert report["best_estimator"] == "diff_means_balanced"
    assert starred == [str(one["best_layer"]) for one in report["estimators"]]
    assert max(len(line) for line in lines if "written" not in line) <= 100
    assert "vector.gguf is without layer 0, which llama.cpp refuses" in lines

    best = load_vector(out / "vector.safetensors")
    assert best.provenance.estimator == "diff_means_balanced"
    assert best.provenance.best_layer == 4
    assert load_vector(out / "vector_diff_means.safetensors").provenance.estimator == "diff_means"
    torch.testing.assert_close(import_gguf(out / "vector.gguf").step(4), best.step(4))
    np.testing.assert_array_equal(np.load(out / "vector" / "layer-008.npy"), best.step(8).numpy())


def test_a_multirun_ends_with_a_table_of_its_jobs(out: Path) -> None:
    done = run(out, "-m", "vector=diff_means,paired_pca", "vector.confound=null")
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.rindex("\njob ") :].splitlines()[1:]
    assert [cell.strip() for cell in table[0].split("  ") if cell.strip()] == [
        "job",
        "vector",
        "best layer",
        "test AUROC",
        "test pairs",
        "confounded by",
    ]
    assert [line.split()[2] for line in table[1:3]] == ["diff_means", "paired_pca"]
    assert (out / "vector=paired_pca" / "vector.safetensors").is_file()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("vector.estimators=[pca]", r"vector\.estimators.*diff_means"),
        ("vector.C=-1", r"vector\.C is -1.*use a number above 0"),
        ("vector.export=[onnx]", r"vector\.export.*gguf"),
        ("data.normalise=standardise", r"data\.normalise is 'standardise'.*set data\.normalise=none"),
        ("data.layers=[7]", "layers 7 were asked for"),
    ],
)
def test_what_can_not_be_fitted_is_refused_by_key(out: Path, override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        stage(composed(out, override))


def test_without_a_validation_split_the_summary_names_no_layer(tmp_path: Path) -> None:
    write_run(tmp_path / "capture", train_only(paired_rows(10)))
    assert stage(composed(tmp_path)) == {"vector": "diff_means", "confounded by": "-"}
    assert load_vector(tmp_path / "vector.safetensors").layer_ids == (0, 4, 8)
