"""Two processes over gloo: the rows that each rank is given, and figures that equal a single process's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from safetensors.torch import load_file, save_file

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.probes import LinearProbe
from easysteer_data.probes.standardise import Moments
from tests.runs import labelled_rows, write_run


class RecordingProbe(LinearProbe):
    """Writes down which rows its process was trained on, batch by batch."""

    def __init__(self, folder: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.folder = Path(folder)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        name = f"epoch-{self.current_epoch}-batch-{batch_idx:03d}-rank-{self.global_rank}"
        save_file({"prompt": batch["prompt"]}, self.folder / name)
        return super().training_step(batch, batch_idx)


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", enable_checkpointing=False, **quiet, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_two_ranks_share_the_rows_and_agree_with_one(tmp_path: Path) -> None:
    rows = labelled_rows((1.0, 3.0), n_rows=507)  # 305 to train on: no multiple of ranks or batch
    run = write_run(tmp_path / "run", rows)
    seen = tmp_path / "seen"
    seen.mkdir()
    probe = RecordingProbe(str(seen), layer_ids=(0, 3), width=12, label_names=rows.names, solver="adam")

    both = trainer(devices=2, strategy="ddp_spawn", max_epochs=2, num_sanity_val_steps=0)
    both.fit(probe, datamodule=ActivationDataModule(run, batch_size=16))

    train = rows.rows_of("train")
    for epoch in range(2):
        of_ranks = [
            [load_file(path)["prompt"] for path in sorted(seen.glob(f"epoch-{epoch}-*-rank-{rank}"))]
            for rank in range(2)
        ]
        assert [len(batches) for batches in of_ranks] == [-(-len(train) // 32)] * 2
        assert sorted(torch.cat([*of_ranks[0], *of_ranks[1]]).tolist()) == rows.prompt[train].tolist()

    expected = Moments.of_rows(torch.from_numpy(rows.x[train]))
    assert probe.readout.n_train == len(train)
    np.testing.assert_allclose(probe.readout.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probe.readout.std, expected.std, rtol=1e-5)

    (alone,) = trainer(devices=1).validate(
        probe, datamodule=ActivationDataModule(run, batch_size=16), verbose=False
    )
    for name, value in alone.items():
        assert float(both.callback_metrics[name]) == pytest.approx(value, abs=1e-6), name
