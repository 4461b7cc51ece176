"""Serves a run's rows to Lightning: layers chosen, split by group, shuffled, the same for every rank.

Knows runs through the shards room. Which prompts make a split is decided when the corpus is read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from lightning import LightningDataModule
from torch import distributed
from torch.utils.data import DataLoader

from easysteer_data.dataset import ActivationDataset, Batch
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.sampler import BatchPlan, BatchSampler, Tail
from easysteer_data.shards import LabelHeader, Run, open_run
from easysteer_data.types import SPLITS, Split, Stream

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class ActivationDataModule(LightningDataModule):
    """Batches of activations from a finished run on a local disk, memory-mapped.

    A batch is a dict of tensors: `x` [B, L, width] (or [B, width]), `y` [B], `prompt`, `position` and
    `token_id` [B], see ActivationDataset.

    - `train_dataloader`: the train split in a random order, a pure function of (seed, epoch). The epoch
      is the Trainer's; without a Trainer, call `loader.sampler.set_epoch(epoch)`.
    - `val_dataloader`, `test_dataloader`: the validation and test splits, in the run's order.
    - `predict_dataloader`: every row of the run, in the run's order.

    Where torch.distributed is initialised, each rank gets its share of every loader's rows: equally many
    batches on every rank, each row on one of them. The Trainer leaves that as it is, with
    `use_distributed_sampler` either True or False.

    Args:
        run: the run folder.
        layers: None for all layers of the stream, several decoder blocks, or one as an int, which
            leaves out the axis L.
        stream: which of the run's streams.
        batch_size: rows of a batch on one rank; None for a whole split at once.
        num_workers: loader processes; the order does not depend on it.
        seed: of the order of the train split.
        dtype: element type of `x`, one of DTYPES.
        tail: what happens to the train split's last rows that fill no whole batch on every rank, see
            BatchPlan; the other loaders always serve every row.
        labelled_only: leave out rows without a label, of every loader.
    """

    def __init__(
        self,
        run: Path | str,
        layers: int | Sequence[int] | None = None,
        stream: Stream = "hidden_states",
        batch_size: int | None = 256,
        num_workers: int = 0,
        seed: int = 0,
        dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float32",
        tail: Tail = "spread",
        labelled_only: bool = False,
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise SettingsError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
        # Plain values only: they go into checkpoints, which are loaded without running code.
        run = str(run)
        layers = layers if layers is None or isinstance(layers, int) else list(layers)
        self.save_hyperparameters()
        self._path = run
        self._layers = layers
        self._stream = stream
        self._batch_size = batch_size
        self._num_workers = num_workers
        self._seed = seed
        self._dtype = DTYPES[dtype]
        self._tail = tail
        self._labelled_only = labelled_only

    @cached_property
    def run(self) -> Run:
        """The run, opened when first asked for."""
        return open_run(self._path)

    @cached_property
    def layer_ids(self) -> tuple[int, ...]:
        """Decoder blocks served, in the order of the axis L.

        Raises:
            SettingsError: a layer was asked for that the run does not hold.
        """
        stored = self.run.layers(self._stream)
        if self._layers is None:
            return stored
        wanted = (self._layers,) if isinstance(self._layers, int) else tuple(self._layers)
        unknown = sorted(set(wanted) - set(stored))
        if unknown or not wanted:
            asked = f"layers {', '.join(map(str, unknown))} were" if unknown else "no layer was"
            held = ", ".join(map(str, stored))
            raise SettingsError(f"{asked} asked for; {self.run.path} holds {held} of {self._stream}")
        return wanted

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.run.manifest.header.streams[self._stream].width

    @property
    def label(self) -> LabelHeader:
        """What the labels are: kind, and names of the classes."""
        return self.run.manifest.header.label

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002 - the hook's signature
        """Open the run and check the choice of layers; cheap, and the same for every stage."""
        _ = self.layer_ids  # raises for a layer that isn't there

    def dataset(self, split: Split | None = None) -> ActivationDataset:
        """Rows of a split, or of all splits, in the run's order.

        Raises:
            RunError: there is no such row; the message tells how many each split has.
        """
        rows = self._rows(split)
        if len(rows) == 0:
            counts = ", ".join(f"{name} {len(self._rows(name))}" for name in SPLITS)
            kind = "rows with a label" if self._labelled_only else "rows"
            raise RunError(f"{self.run.path}: no {kind} in split {split or 'all'!r}; rows: {counts}")
        layers = self._layers if isinstance(self._layers, int) else self.layer_ids
        return ActivationDataset(self.run, self._stream, layers, rows, self._dtype)

    def train_dataloader(self) -> DataLoader[Batch]:
        """The train split, shuffled anew each epoch."""
        epoch = 0 if self.trainer is None else self.trainer.current_epoch
        return self._loader("train", self._tail, self._seed, epoch)

    def val_dataloader(self) -> DataLoader[Batch]:
        """The validation split."""
        return self.ordered_dataloader("validation")

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test split."""
        return self.ordered_dataloader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Every row of the run."""
        return self.ordered_dataloader()

    def ordered_dataloader(self, split: Split | None = None) -> DataLoader[Batch]:
        """Every row of a split, or of all splits, once, in the run's order, shared between the ranks."""
        return self._loader(split, "spread")

    def _loader(
        self, split: Split | None, tail: Tail, seed: int | None = None, epoch: int = 0
    ) -> DataLoader[Batch]:
        dataset = self.dataset(split)
        initialised = distributed.is_available() and distributed.is_initialized()
        n_ranks, rank = (distributed.get_world_size(), distributed.get_rank()) if initialised else (1, 0)
        plan = BatchPlan(len(dataset), self._batch_size, n_ranks, tail)
        return DataLoader(
            dataset,
            batch_size=None,
            # A new loader starts at the Trainer's epoch: Lightning makes the first iterator of a resumed
            # fit before it calls set_epoch.
            sampler=BatchSampler(plan, rank, seed, epoch),
            num_workers=self._num_workers,
            collate_fn=_whole,
            persistent_workers=self._num_workers > 0,
            multiprocessing_context=_start_method() if self._num_workers else None,
        )

    def _rows(self, split: Split | None) -> torch.Tensor:
        """The run's row numbers of a split, or of all splits, int64, ascending."""
        chosen = np.isin(self._splits, [SPLITS.index(name) for name in ([split] if split else SPLITS)])
        if self._labelled_only and (labels := self.run.labels) is not None:
            chosen &= (labels.isnan().logical_not() if labels.is_floating_point() else labels >= 0).numpy()
        return torch.from_numpy(np.flatnonzero(chosen))

    @cached_property
    def _splits(self) -> npt.NDArray[np.int8]:
        return self.run.row_splits()


def _start_method() -> str | None:
    """How loader processes start; None = torch's own way.

    An engine that runs in this process leaves OpenMP threads behind, and a process forked then waits for them
    for ever: it keeps torch from setting their number (vllm/v1/worker/cpu_worker.py, 0.32.0).
    """
    return "spawn" if "vllm" in sys.modules else None


def _whole(batch: Any) -> Any:
    """Leave a batch as it is: the data set has built all of it."""
    return batch
