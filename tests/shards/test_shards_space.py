"""A disk that fills up ends a capture in one clear error, and the run continues once there is room."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.errors import RunError
from easysteer_data.shards import RunWriter
from easysteer_data.shards.space import write_failures_explained
from tests.shards.made import files_of, make_run, write_run

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--map-root-user", "--mount"]


def test_a_full_disk_says_so_keeps_finished_shards_and_the_run_ends_the_same(tmp_path: Path) -> None:
    may_mount = subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    done = subprocess.run(
        [*(UNSHARE if may_mount else []), sys.executable, "-m", "tests.shards.full_disk", tmp_path],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    what = "the disk is full (No space left on device" if report["mounted"] else "(File too large"
    assert what in report["failure"]
    assert report["failure"].startswith(f"{tmp_path / 'disk' / 'out'}: ")
    assert report["failure"].endswith(
        "Finished shards are kept. Make room, then capture again with the same settings to continue"
    )
    assert (report["done"], report["partial"], report["same"]) == ([0], [], True)


def test_a_shard_that_would_leave_too_little_is_refused_before_it_is_written(tmp_path: Path) -> None:
    made = make_run()
    free = shutil.disk_usage(tmp_path).free
    with RunWriter.open(tmp_path, made.header, min_free_bytes=free + 10**12) as writer:
        before = files_of(tmp_path)
        with pytest.raises(RunError) as caught:
            writer.write(made.shards[0])
        assert files_of(tmp_path) == before
        assert writer.done == frozenset()
    message = str(caught.value)
    # 10 rows of 3 layers: 6 float32, then prompt, position and token of 4 bytes and a label of 8.
    assert f"the next shard needs {10 * 3 * (24 + 20) / 1e9:.3f} GB" in message
    assert f"{(free + 10**12) / 1e9:,.3f} GB must stay free" in message
    assert message.endswith("Make room, then capture again with the same settings to continue")
    with RunWriter.open(tmp_path, made.header, min_free_bytes=1) as writer:
        writer.write(made.shards[0])
    write_run(tmp_path, made)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            r"the disk is full \(No space left on device; .* free",
        ),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "the disk quota is used up"),
        (
            OSError(errno.EIO, os.strerror(errno.EIO), "a.tar"),
            r"can't be written \(Input/output error at a.tar",
        ),
        (OSError("odd"), r"can't be written \(odd;"),
    ],
)
def test_what_the_operating_system_says_reaches_people(tmp_path: Path, error: OSError, words: str) -> None:
    with pytest.raises(RunError, match=words) as caught, write_failures_explained(tmp_path):
        raise error
    assert caught.value.__cause__ is error
