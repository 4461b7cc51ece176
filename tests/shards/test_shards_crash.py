from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shards.made import memory_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def crashes() -> list[dict[str, Any]]:
    """What became of runs whose writer was killed, at each step in turn and at random moments."""
    with memory_folder() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.shards.crash", folder],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    return reports


def test_a_run_killed_at_any_step_ends_byte_identical_when_continued(crashes: list[dict[str, Any]]) -> None:
    assert {crash["out"]: crash["differing"] for crash in crashes if crash["differing"]} == {}


def test_no_committed_shard_is_written_again(crashes: list[dict[str, Any]]) -> None:
    assert all(crash["untouched"] for crash in crashes)
    assert all(crash["finished_tars_of_done"] == 2 * len(crash["done"]) for crash in crashes)


def test_the_kills_fell_before_between_and_after_the_shards(crashes: list[dict[str, Any]]) -> None:
    steps = [crash["done"] for crash in crashes if crash["out"].startswith("step")]
    assert len(steps) > 30
    assert [steps.index(done) for done in ([], [0], [0, 1])] == sorted({steps.index(d) for d in steps})
