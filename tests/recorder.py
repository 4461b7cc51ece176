"""A module that remembers the rows it is trained on, and a quiet Trainer: what tests of serving train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

Batch = dict[str, torch.Tensor]


class Recorder(LightningModule):
    """Remembers the batches of each epoch; the metric `total` sums what validation and tests are given.

    Attributes:
        epochs: epoch -> its batches, in the order they were trained on.
        fail_at: step in whose middle training fails.
    """

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.epochs: dict[int, list[Batch]] = {}
        self.fail_at = fail_at

    def training_step(self, batch: Batch) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("stopped in the middle of a step")
        self.epochs.setdefault(self.current_epoch, []).append(batch)
        return self.weight * batch["x"].float().mean()

    def validation_step(self, batch: Batch) -> None:
        self.log("total", batch["x"].double().sum(), reduce_fx="sum", sync_dist=True, batch_size=1)

    def test_step(self, batch: Batch) -> None:
        self.validation_step(batch)

    def predict_step(self, batch: Batch) -> torch.Tensor:
        return batch["prompt"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(max_epochs: int, folder: Path | None = None, **options: Any) -> Trainer:
    """A Trainer that keeps a checkpoint of every step, as `step-7.ckpt`, where it is given a folder."""
    if folder is not None:
        every_step = ModelCheckpoint(
            folder, "step-{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False
        )
        options["callbacks"] = [every_step, *options.get("callbacks", [])]
    return Trainer(
        enable_checkpointing="callbacks" in options,
        max_epochs=max_epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
