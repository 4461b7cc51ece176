"""Happy against sad, from sentences to steered text: a real model, every stage from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def stage(name: str, out: Path, *overrides: str) -> None:
    arguments = ["experiment=happiness", "corpus=feelings", f"out={out}", "progress=false", *overrides]
    command = [sys.executable, "-m", f"pipelines.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]


def curves(out: Path, score: str) -> dict[tuple[int, ...], dict[float, float]]:
    """Layers -> scale -> score."""
    report: dict[str, Any] = json.loads((out / "steer_report.json").read_text())
    return {
        tuple(curve["layers"]): {cell["scale"]: cell["figures"][score]["value"] for cell in curve["cells"]}
        for curve in report["curves"]
    }


@pytest.mark.long
@pytest.mark.usefixtures("smollm2")
def test_adding_the_vector_moves_the_probe_and_erasing_it_blinds_the_probe(tmp_path: Path) -> None:
    for name in ("capture", "train_probe", "fit_vector"):
        stage(name, tmp_path)
    stage("steer", tmp_path, "steer.layers=[13]", "steer.scales=[-6,-4,-2,2,4,6]")
    direct = curves(tmp_path, "probe")[13,]
    assert list(direct) == [-6, -4, -2, 0, 2, 4, 6]
    values = list(direct.values())
    # Texts are greedy, and differ between kinds of processors: the outermost scales need not go on rising.
    assert any(values[i : i + 5] == sorted(set(values[i : i + 5])) for i in range(3))

    stage("steer", tmp_path, "steer=erase", "steer.layers=null", "steer.prompts.n_prompts=2")
    (erased,) = curves(tmp_path, "separation").values()
    assert erased[1.0] < erased[0.0] - 0.1
