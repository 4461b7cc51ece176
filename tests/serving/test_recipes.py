"""The README's recipes run as they are printed, and each reads the same rows."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs import random_rows, write_run

README = Path(__file__).parents[2] / "easysteer_data" / "serving" / "README.md"


# WebDataset leaves the closing of its files to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_every_recipe_reads_the_rows_of_the_run(tmp_path: Path) -> None:
    rows = random_rows(layer_ids=(0, 12))
    seen: dict[str, Any] = {"run": str(write_run(tmp_path / "run", rows))}
    for example in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(example, seen)
    gc.collect()
    x, train = rows.x[:, 1], rows.rows_of("train")

    def ordered(found: Any) -> Any:
        return sorted(torch.as_tensor(np.asarray(found)).tolist())

    y = torch.cat([batch["y"] for batch in seen["lightning_batches"]])
    assert torch.bincount(y)[0] == torch.bincount(y)[1]
    torch_x = torch.cat([batch["x"] for batch in seen["torch_batches"]])
    assert ordered(torch_x[:, 1]) == ordered(x[train])
    assert ordered(torch.cat([batch[0] for batch in seen["web_batches"]])) == ordered(x)
    for prompt in seen["prompts"]:
        np.testing.assert_array_equal(prompt["x"], x[rows.prompt == int(prompt["prompt"])])
        np.testing.assert_array_equal(prompt["position"], rows.position[rows.prompt == int(prompt["prompt"])])
        assert int(prompt["label"]) == rows.y[rows.prompt == int(prompt["prompt"])][0]
    assert len(seen["prompts"]) == len(rows.n_rows)
    np.testing.assert_array_equal(seen["matrix"], x)
    assert ordered(torch.cat([batch["x"] for batch in seen["remote_batches"]])) == ordered(x[train])
    np.testing.assert_allclose(seen["class_means"][1], x[train][rows.y[train] == 1].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(seen["hugging_face"][:]["x"], x)
    assert seen["hugging_face"][3]["position"] == rows.position[3]
    scaled = x[train] * np.sqrt(8) / np.linalg.norm(x[train].astype(np.float64), axis=1).mean()
    n_batches = len(train) // 4
    served = torch.cat([seen["first"], *(next(seen["buffer"]) for _ in range(n_batches - 1))]).numpy()
    distance = np.abs(served[:, None] - scaled).max(axis=2)
    assert distance.min(axis=1).max() < 1e-5
    assert len(set(distance.argmin(axis=1))) == 4 * n_batches
