"""The demo, end to end: a real model's rows give a probe that reads truth on cities it has never seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from easysteer_data.shards import open_run
from easysteer_data.types import SPLITS
from easysteer_data.vectors import load_vector

ROOT = Path(__file__).parents[1]


def stage(name: str, out: Path) -> str:
    command = [sys.executable, "-m", f"pipelines.{name}", "experiment=demo", f"out={out}", "progress=false"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_demo_reads_truth_as_well_as_scikit_learn(smollm2: Path, tmp_path: Path) -> None:
    assert smollm2.relative_to(ROOT) == Path(".cache/models/SmolLM2-135M-Instruct-float32")
    assert "captured 460 prompts" in stage("capture", tmp_path)
    printed = stage("train_probe", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert f"* {report['best_layer']:>5}" in printed
    assert [entry["layer"] for entry in report["layers"]] == list(range(30))
    assert (report["n_train"], report["n_test"]) == (276, 92)
    assert report["test_auroc"] >= 0.85
    assert max(report["layers"], key=lambda entry: entry["val_auroc"])["layer"] == report["best_layer"]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")

    run = open_run(tmp_path / "capture")
    splits = run.row_splits()
    for layer_id in (report["best_layer"], 5, 29):
        rows = run.gather("hidden_states", [layer_id], torch.arange(run.n_rows))[:, 0].double().numpy()
        labels = run.labels.numpy()
        train, test = (splits == SPLITS.index(split) for split in ("train", "test"))
        scaler = StandardScaler().fit(rows[train])
        classifier = LogisticRegression(C=1.0, max_iter=5000).fit(
            scaler.transform(rows[train]), labels[train]
        )
        auroc = roc_auc_score(labels[test], classifier.decision_function(scaler.transform(rows[test])))
        assert abs(auroc - report["layers"][layer_id]["test_auroc"]) <= 0.02
    # A vector of the same rows, and text that it steers.
    stage("fit_vector", tmp_path)
    vector = load_vector(tmp_path / "vector.safetensors")
    assert vector.layer_ids == tuple(range(30))
    printed = stage("steer", tmp_path)
    trial = json.loads((tmp_path / "steer_report.json").read_text())
    (curve,) = trial["curves"]
    assert curve["layers"] == [vector.provenance.best_layer]
    assert [cell["scale"] for cell in curve["cells"]] == [-4, 0, 2, 4]
    assert [sample["prompt"] for sample in trial["samples"]] == [
        "The city of Paris is in",
        "Water is made of",
    ]
    assert all(sample["completions"][0]["text"].strip()[:20] in printed for sample in trial["samples"])
    # Groups never straddle splits, and a second capture finds the finished run.
    cities = {}
    for prompt in run.prompts(["group", "split"]).to_pylist():
        assert cities.setdefault(prompt["group"], prompt["split"]) == prompt["split"]
    assert "found finished" in stage("capture", tmp_path)
