from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scripts.fuzz import TARGETS, damaged

ROOT = Path(__file__).parents[2]


def test_damaged_runs_are_read_or_refused_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.fuzz", "--seconds", "1", "--first", "20000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report.pop("found")) == (0, ""), done.stderr[-2000:]
    assert report.pop("cases") >= 100
    assert {key.partition(":")[0] for key in report} == {name.split("/")[0] for name in TARGETS}
    assert sum(n for key, n in report.items() if key.endswith("refused")) > 30


def test_damage_is_the_same_for_the_same_case_and_is_some() -> None:
    import random

    data = bytes(range(256)) * 8
    changed = [damaged(data, random.Random(number)) for number in range(50)]
    assert changed == [damaged(data, random.Random(number)) for number in range(50)]
    assert sum(one != data for one in changed) > 45
