"""Two processes over gloo, few shards, odd numbers of rows: all finishes, and the figures are exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runs import random_rows, write_run

PROGRAM = """
import json, sys
from pathlib import Path
from easysteer_data import ActivationDataModule, StreamingDataModule
from tests.recorder import Recorder, trainer

if __name__ == "__main__":
    run, folder, kind = sys.argv[1:]
    recorder = Recorder()
    both = trainer(2, devices=2, strategy="ddp", num_sanity_val_steps=0)
    if kind == "mapped":
        datamodule = ActivationDataModule(run, batch_size=4, num_workers=1)
    else:
        datamodule = StreamingDataModule(Path(run).as_uri(), 2, batch_size=4, num_workers=1, buffer_rows=20)
    both.fit(recorder, datamodule=datamodule)
    (validation,) = both.validate(recorder, datamodule=datamodule, verbose=False)
    (test,) = both.test(recorder, datamodule=datamodule, verbose=False)
    seen = {
        "validation": validation["total"],
        "test": test["total"],
        "epochs": [
            [list(zip(b["prompt"].tolist(), b["position"].tolist())) for b in batches]
            for batches in recorder.epochs.values()
        ],
    }
    Path(folder, f"rank-{both.global_rank}.json").write_text(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_shards"), [("mapped", 3), ("streamed", 5)])
def test_fit_validate_and_test_finish_on_two_ranks_with_the_figures_of_one(
    tmp_path: Path, kind: str, n_shards: int
) -> None:
    rows = random_rows(n_prompts=52)
    counts = [len(rows.rows_of(split)) for split in ("train", "validation", "test")]
    assert any(n % 2 for n in counts)
    run = write_run(tmp_path / "run", rows, n_shards=n_shards)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(run), str(tmp_path), kind],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    train = rows.rows_of("train")
    expected = sorted(zip(rows.prompt[train].tolist(), rows.position[train].tolist(), strict=True))
    orders = []
    for epochs in zip(*(rank["epochs"] for rank in ranks), strict=True):
        assert len({len(batches) for batches in epochs}) == 1
        served = [tuple(pair) for batches in epochs for batch in batches for pair in batch]
        assert sorted(served) == expected
        orders.append(served)
    assert orders[0] != orders[1]
    x = rows.x if kind == "mapped" else rows.x[:, 1]
    for split in ("validation", "test"):
        total = x[rows.rows_of(split)].astype(np.float64).sum()  # type: ignore[arg-type]
        assert [rank[split] for rank in ranks] == pytest.approx([total, total], abs=1e-4)
