"""What scripts/setup refuses before it touches anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def setup(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run scripts/setup, with `path` as the only place of programs."""
    bash = str(shutil.which("bash"))
    environment = None if path is None else {"PATH": str(path)}
    command = [bash, str(ROOT / "scripts/setup"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_folder_that_is_no_virtual_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = setup(str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path} is there and is not a virtual environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_python_3_11_the_error_says_what_to_install(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "ls"):
        (programs / name).symlink_to(str(shutil.which(name)))
    done = setup(str(tmp_path / "venv"), path=programs)
    assert done.returncode == 1
    assert "neither python3.11 nor python3 is one" in done.stderr
    assert "apt-get install python3.11 python3.11-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_an_unknown_option_shows_the_usage() -> None:
    done = setup("--fast")
    assert done.returncode == 1
    assert "usage: scripts/setup [--dev] [VENV]" in done.stderr
