"""Several jobs in one command: an engine each, captures shared by fingerprint, one table at the end."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture_run.killing import start
from tests.runs import labelled_rows, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def arguments(tiny_model: Path, tmp_path: Path) -> list[str]:
    corpus = tmp_path / "prompts.jsonl"
    rows = [{"text": f"The city of {'x' * (i % 9)} is {i}.", "label": i % 2} for i in range(30)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "-m",
        "model=folder",
        f"model.path={tiny_model}",
        "model.dtype=float32",
        "corpus=jsonl",
        f"corpus.path={corpus}",
        "corpus.label_column=label",
        "engine.options.kv_cache_memory_bytes=67108864",
        "shards.min_free_gb=0.01",
        "progress=false",
        f"out={tmp_path / 'out'}",
    ]


def run(arguments: list[str], log: Path) -> tuple[int | None, str]:
    process = start(arguments, log)
    process.join()
    return process.exitcode, log.read_text()


def test_jobs_that_need_the_same_rows_share_one_capture(arguments: list[str], tmp_path: Path) -> None:
    code, log = run([*arguments, "capture.layers=[0],[1,2]", "data.seed=0,1"], tmp_path / "log.txt")
    assert code == 0, log
    out = tmp_path / "out"
    jobs = sorted(path.name for path in out.iterdir() if (path / "capture").is_symlink())
    assert jobs == [f"capture.layers={a},data.seed={b}" for a in ("[0]", "[1,2]") for b in (0, 1)]
    assert len(list((out / "captures").iterdir())) == 2
    runs = [(out / job / "capture").resolve() for job in jobs]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    manifest = json.loads((runs[2] / "manifest.json").read_text())
    assert manifest["streams"]["hidden_states"]["layer_ids"] == [1, 2]
    table = log[log.index("\njob ") :].splitlines()[1:]
    assert table[0].split()[:3] == ["job", "run", "prompts"]
    assert [line.split()[-1] for line in table[1:5]] == ["8", "0", "8", "0"]  # shards captured

    code, log = run([*arguments, "capture.layers=[0],[1,2]", "data.seed=0,1"], tmp_path / "again.txt")
    assert code == 0, log
    assert log.count("found finished, nothing to capture") == 4


def test_a_job_that_fails_is_told_at_the_end_and_costs_no_other(
    arguments: list[str], tiny_model: Path, tmp_path: Path
) -> None:
    code, log = run([*arguments, f"model.path={tmp_path / 'none'},{tiny_model}"], tmp_path / "log.txt")
    assert code == 1
    assert "captured 30 prompts" in log
    failed = [line for line in log.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "is no folder" in failed[0]
    assert "Traceback" not in log


def test_a_sweep_of_probes_ends_with_one_table_as_text_and_csv(tmp_path: Path) -> None:
    write_run(tmp_path / "capture", labelled_rows((3.0, 0.5), n_rows=200))
    command = [sys.executable, "-m", "pipelines.train_probe", "-m", "probe=logistic,mass_mean"]
    done = subprocess.run(
        [*command, "data.layers=0,[3]", "probe.bootstrap=20", "progress=false", f"out={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["probe"], row["best layer"]) for row in rows] == [
        ("logistic", "0"),
        ("logistic", "3"),
        ("mass_mean", "0"),
        ("mass_mean", "3"),
    ]
    assert all(row["error"] == "" for row in rows)
    folder = tmp_path / "probe=mass_mean,data.layers=[3]"
    report = json.loads((folder / "report.json").read_text())
    assert rows[3]["test auroc"] == f"{report['test_auroc']:.3f}"
    table = done.stdout[done.stdout.rindex("\njob ") :].splitlines()[1:]
    assert table[0].split("  ")[0] == "job"
    assert f"written: {tmp_path / 'summary.csv'}" in done.stdout
