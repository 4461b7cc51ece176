"""The stage `inspect` as a user runs it, on runs of made-up rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from easysteer_data.errors import RunError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import inspect_run, repair_run
from pipelines.inspect import stage
from tests.runs import random_rows, write_run
from tests.shards.made import files_of

ROOT = Path(__file__).parents[2]
TAR = "hidden_states/layer-002/shard-000001.tar"


def inspect(*overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.inspect", *overrides],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "out" / "capture", random_rows())


def test_the_experiments_own_run_is_shown_shard_by_shard(run: Path) -> None:
    done = inspect(f"out={run.parent}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"run: {run}"
    assert sum(line.endswith("  ok") for line in lines) == 3
    assert lines[-1] == "ok"


def test_every_bad_file_of_a_named_run_is_listed_and_the_exit_code_is_1(run: Path, tmp_path: Path) -> None:
    (run / TAR).write_bytes((run / TAR).read_bytes()[:-1])
    (run / "prompts/shard-000002.parquet").unlink()
    before = files_of(run)
    done = inspect(f"run={run}", f"out={tmp_path / 'other'}")
    assert done.returncode == 1
    assert f"  {TAR}: " in done.stdout
    assert "  prompts/shard-000002.parquet: missing" in done.stdout
    assert done.stdout.splitlines()[-1] == "NOT OK"
    assert done.stderr.splitlines()[-1] == (
        f"BadShardError: {run}: 2 bad files, 2 of 3 shards are bad; "
        "inspect.repair=true has exactly these captured again"
    )
    assert "Traceback" not in done.stderr
    assert files_of(run) == before


def test_repair_marks_the_bad_shards_of_a_run_that_the_settings_do_not_describe(
    run: Path, tmp_path: Path, tiny_model: Path
) -> None:
    (run / TAR).write_bytes(b"")
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    experiment = ("model=folder", f"model.path={tiny_model}", "corpus=txt", f"out={tmp_path / 'other'}")
    corpus = f"corpus.path={tmp_path / 'prompts.txt'}"
    done = inspect(f"run={run}", "inspect.repair=true", *experiment, corpus)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"RunError: {run}: the bad shards are marked as not done; the settings here are not the run's"
    )
    assert not (run / TAR).exists()
    assert [shard.state for shard in inspect_run(run).shards] == ["ok", "missing", "ok"]


def settings_for(folder: Path) -> ExperimentSettings:
    values = {"name": "x", "out": str(folder), "model": {"path": "none"}, "corpus": {"path": "none"}}
    return build(ExperimentSettings, values)


def test_an_unfinished_run_is_shown_and_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / TAR).unlink()
    repair_run(run)
    with pytest.raises(RunError, match=f"{run}: unfinished, 2 of 3 shards are done; capture again"):
        stage(settings_for(run.parent))
    assert "state: unfinished, 2 of 3 shards done" in capsys.readouterr().out


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"{tmp_path / 'capture'}: no such folder"):
        stage(settings_for(tmp_path))
