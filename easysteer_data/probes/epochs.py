"""Epochs of a Trainer over a probe's examples, and the best one of each layer. Keeps Lightning quiet."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning import Callback, LightningModule, Trainer

from easysteer_data.probes.contract import Training
from easysteer_data.probes.data import ProbeData
from easysteer_data.serving.dataset import Batch

if TYPE_CHECKING:
    from easysteer_data.probes.trained import TrainedProbe


def train_epochs(probe: TrainedProbe, data: ProbeData, training: Training) -> None:
    """Train a probe whose rows' mean and std it knows, and leave it with the best epoch of each layer."""
    best = None if training.patience is None else BestEpochs(training.patience)
    with quiet_lightning():
        trainer = Trainer(
            max_epochs=training.max_epochs,
            devices=1,
            logger=training.logger or False,
            enable_progress_bar=training.progress,
            callbacks=[best] if best else [],
            limit_val_batches=1.0 if best else 0,
            log_every_n_steps=max(min(data.n_train_batches, 50), 1),
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(probe, _Epochs(data), _Batches(lambda: data.batches("validation")))
    probe.eval()


class BestEpochs(Callback):
    """Keeps, of every layer alone, the epoch with the lowest validation error; stops when none gets lower.

    Args:
        patience: epochs without a lower error in any layer after which training stops.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._least: torch.Tensor | None = None
        self._kept: list[torch.Tensor] = []
        self._n_without = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the epoch with the best so far."""
        if trainer.sanity_checking:
            return
        probe: Any = pl_module
        errors, parameters = probe.validation_errors, list(probe.readout.parameters())
        if self._least is None:
            self._least, self._kept = errors.clone(), [p.detach().clone() for p in parameters]
            return
        better = errors < self._least
        self._least = torch.where(better, errors, self._least)
        for kept, parameter in zip(self._kept, parameters, strict=True):
            kept[better] = parameter.detach()[better]
        self._n_without = 0 if bool(better.any()) else self._n_without + 1
        trainer.should_stop = trainer.should_stop or self._n_without >= self.patience

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Leave the probe with what was kept."""
        probe: Any = pl_module
        with torch.no_grad():
            for kept, parameter in zip(self._kept, probe.readout.parameters(), strict=True):
                parameter.copy_(kept)


@dataclass
class _Batches:
    """An iterable that begins anew each time."""

    begin: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.begin()


class _Epochs:
    """The train split, in another order each time; Lightning counts its batches before."""

    def __init__(self, data: ProbeData) -> None:
        self._data = data
        self._epoch = 0

    def __len__(self) -> int:
        return self._data.n_train_batches

    def __iter__(self) -> Iterator[Batch]:
        self._epoch += 1
        return self._data.shuffled(self._epoch - 1)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's notes on devices, and warnings that the reader can do nothing with."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Rows are mapped, one process reads them fast enough.
            warnings.filterwarnings("ignore", ".*does not have many workers", UserWarning)
            # An engine in this process has a process group; Lightning takes it for the Trainer's.
            warnings.filterwarnings("ignore", ".*sync_dist=True.* in distributed setting", UserWarning)
            # Lightning 2.6 on torch 2.13.
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
