"""The stages as a user runs them: from the repo, and from an installed wheel in an empty folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.model_runs import ModelRun

ROOT = Path(__file__).parents[2]
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]


def run(*arguments: str, cwd: Path = ROOT, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    import os

    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )


def test_cfg_job_prints_the_whole_config_without_running() -> None:
    done = run("-m", "pipelines.capture", "experiment=demo", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "name: demo" in done.stdout
    assert "prompt_positions" in done.stdout


@pytest.mark.parametrize("stage", ["capture", "fit_vector", "train_probe", "verify"])
def test_an_unknown_key_ends_with_the_nearest_valid_one(stage: str) -> None:
    done = run("-m", f"pipelines.{stage}", "capture.storag=float16")
    assert done.returncode == 1
    assert "did you mean 'capture.storage'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input_ends_in_one_clear_line_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("-m", "pipelines.capture", "model=folder", "model.path=nowhere", f"out={out}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("SettingsError: model.path 'nowhere' is no folder")
    assert not (out / "capture").exists()


@pytest.mark.parametrize("stage", ["fit_vector", "train_probe", "verify"])
def test_a_stage_without_a_run_says_what_is_missing(stage: str, tmp_path: Path) -> None:
    done = run("-m", f"pipelines.{stage}", f"out={tmp_path}")
    assert done.returncode == 1
    assert "RunError" in done.stderr
    assert str(tmp_path / "capture") in done.stderr


def test_verify_prints_every_layer_of_a_run_that_matches(tiny_model: Path, tmp_path: Path) -> None:
    ModelRun(tiny_model, PROMPTS).write(tmp_path / "out" / "capture")
    done = run(
        "-m",
        "pipelines.verify",
        f"out={tmp_path / 'out'}",
        "model=folder",
        f"model.path={tiny_model}",
        "verify.n=2",
    )
    assert done.returncode == 0, done.stderr
    assert "2 prompts" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if "layer " in line][-3:] == ["0", "1", "2"]
    assert done.stdout.splitlines()[-1] == "passed"


def test_verify_ends_with_the_worst_row_of_a_run_that_does_not_match(
    tiny_model: Path, tmp_path: Path
) -> None:
    altered = ModelRun(tiny_model, PROMPTS, alter={(1, 2): lambda rows: rows * 1.1}).write(tmp_path / "run")
    done = run(
        "-m",
        "pipelines.verify",
        f"run={altered}",
        f"model.path={tiny_model}",
        f"out={tmp_path / 'out'}",
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "FAILED"
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"RunError: {altered}: 1 of 3 layers differ from Hugging Face")
    assert "layer 2, prompt id-1 (made.txt:2), position" in last
    assert "Traceback" not in done.stderr


def test_the_repo_itself_runs_as_a_module() -> None:
    done = run("-m", "easysteer_data", "capture", "experiment=demo", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "name: demo" in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_installs_no_generic_top_level_name(wheel: Path) -> None:
    assert {p.name.partition("-")[0] for p in wheel.iterdir()} == {"easysteer_data"}
    assert (wheel / "easysteer_data" / "py.typed").is_file()


def test_the_wheel_runs_its_stages_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    code = "import sys; from easysteer_data.__main__ import main; sys.argv[0] = 'easysteer-data'; main()"
    shown = run("-c", code, "capture", "experiment=demo", "--cfg", "job", cwd=tmp_path, path=wheel)
    assert shown.returncode == 0, shown.stderr
    assert "name: demo" in shown.stdout
    where = run("-c", "import easysteer_data; print(easysteer_data.__file__)", cwd=tmp_path, path=wheel)
    assert where.stdout.startswith(str(wheel))
    wrong = run("-c", code, "captur", cwd=tmp_path, path=wheel)
    assert wrong.returncode == 2
    assert "stages: capture, fit_vector, inspect, merge, report, steer, train_probe, verify" in wrong.stderr
    assert list(tmp_path.iterdir()) == []
