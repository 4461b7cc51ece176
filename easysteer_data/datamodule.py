"""Serves a run's rows to Lightning: chosen, split by group, shuffled, normalised, the same for every rank.

Knows runs through the shards room. Which prompts make a split is decided when the corpus is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from easysteer_data.data_options import (
    DTYPES,
    LoaderOptions,
    Normalisation,
    RowFilter,
    RowOrder,
    ServedDtype,
    Tail,
    check_choice,
    check_workers,
    coerce_options,
    plain_options,
)
from easysteer_data.errors import BadShardError, SettingsError
from easysteer_data.serving import (
    NORMALISATIONS,
    ActivationLoader,
    Normaliser,
    ServedLayers,
    ShuffleQuality,
    SplitRows,
    fit_normaliser,
    loader_arguments,
    ranks,
    resume_sampler,
    trained_state,
)
from easysteer_data.serving.dataset import ActivationDataset, Batch
from easysteer_data.serving.sampler import BatchPlan, BatchSampler, Progress
from easysteer_data.shards import LabelHeader, Run, inspect_run, open_run
from easysteer_data.types import Split, Stream


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

    A Trainer's checkpoint holds how far training has come in its epoch. Resumed from it, with another
    number of workers, ranks or another batch size, the epoch goes on with the rows that are left.

    Args:
        run: the run folder.
        layers: None for all layers of the stream, several decoder blocks, or one as an int, which
            leaves out the axis L.
        stream: which of the run's streams.
        batch_size: rows of a batch on one rank; None for a whole split at once.
        num_workers: loader processes; the order does not depend on it.
        seed: of the order of the train split, and of the draw of `rows.limit`.
        dtype: element type of `x`, one of DTYPES.
        tail: what happens to the train split's last rows that fill no whole batch on every rank, see
            BatchPlan; the other loaders always serve every row.
        labelled_only: leave out rows without a label, of every loader.
        rows: which rows every loader serves: a RowFilter, or its fields as a mapping.
        order: of the train split: a RowOrder, or its fields as a mapping.
        loading: how batches are loaded: LoaderOptions, or their fields as a mapping.
        normalise: how `x` is brought to a common scale, see Normaliser; fitted on the train split's rows.
        cast: where `x` gets its dtype and is normalised: `host`: as it is loaded; `device`: after the
            Trainer has moved the batch, so that it travels in the storage dtype. Without a Trainer, apply
            `normaliser` to what the loaders give.
        check: of the run's files before training: `cheap`: presence, sizes and indices; `full`: all bytes.
    """

    def __init__(
        self,
        run: Path | str,
        layers: int | Sequence[int] | None = None,
        stream: Stream = "hidden_states",
        batch_size: int | None = 256,
        num_workers: int = 0,
        seed: int = 0,
        dtype: ServedDtype = "float32",
        tail: Tail = "spread",
        labelled_only: bool = False,
        rows: RowFilter | Mapping[str, Any] | None = None,
        order: RowOrder | Mapping[str, Any] | None = None,
        loading: LoaderOptions | Mapping[str, Any] | None = None,
        normalise: Normalisation = "none",
        cast: Literal["host", "device"] = "host",
        check: Literal["cheap", "full"] = "cheap",
    ) -> None:
        super().__init__()
        check_choice("dtype", dtype, DTYPES)
        check_choice("normalise", normalise, NORMALISATIONS)
        check_choice("cast", cast, ("host", "device"))
        check_choice("check", check, ("cheap", "full"))
        self._filter = coerce_options(RowFilter, rows, "rows")
        self._order = coerce_options(RowOrder, order, "order")
        self._loading = coerce_options(LoaderOptions, loading, "loading")
        check_workers(self._loading, num_workers)
        # Plain values only: they go into checkpoints, which are loaded without running code.
        rows, order, loading = (plain_options(o) for o in (self._filter, self._order, self._loading))
        run = str(run)
        layers = layers if layers is None or isinstance(layers, int) else list(layers)
        self.save_hyperparameters()
        self._path = run
        self._layers = layers
        self._stream = stream
        self._batch_size = batch_size
        self._num_workers = num_workers
        self._seed = seed
        self._dtype = getattr(torch, dtype)
        self._tail: Tail = tail
        self._labelled_only = labelled_only
        self._normalise: Normalisation = normalise
        self._on_device = cast == "device"
        self._check_fully = check == "full"
        self._held: dict[Split | None, torch.Tensor] = {}
        self._train_loader: ActivationLoader | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._reload_every: int | None = None

    @cached_property
    def run(self) -> Run:
        """The run, opened when first asked for."""
        return open_run(self._path)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Decoder blocks served, in the order of the axis L.

        Raises:
            SettingsError: a layer was asked for that the run does not hold.
        """
        return self._served_layers.layer_ids

    @cached_property
    def _served_layers(self) -> ServedLayers:
        return ServedLayers(self.run, self._stream, self._layers)

    @cached_property
    def _rows(self) -> SplitRows:
        return SplitRows(self.run, self._filter, self._order, self._labelled_only, self._seed)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self._served_layers.width

    @property
    def label(self) -> LabelHeader:
        """What the labels are: kind, and names of the classes."""
        return self.run.manifest.header.label

    @cached_property
    def normaliser(self) -> Normaliser:
        """What brings `x` to a common scale; fitted on the train split when first asked for."""
        if self._normalise in ("none", "unit_norm"):
            return Normaliser(self._normalise)
        return fit_normaliser(self._normalise, self.run, self._stream, self.layer_ids, self._rows["train"])

    def prepare_data(self) -> None:
        """Check the run's files, before any rank trains on them, as thoroughly as `check` says.

        Raises:
            BadShardError: files are missing or altered; the message lists all of them.
        """
        open_run(self._path)
        if self._check_fully and not (found := inspect_run(self._path)).ok:
            raise BadShardError("\n  ".join([found.failure, *map(str, found.bad)]))

    def setup(self, stage: str | None = None) -> None:
        """Open the run and check the choice of layers; cheap."""
        _ = self.layer_ids  # raises for a layer that isn't there
        if stage == TrainerFn.FITTING:
            self._resumed = None  # a checkpoint, if there is one, is restored after this

    def teardown(self, stage: str | None = None) -> None:
        """Forget the place in the training epoch."""
        if stage == TrainerFn.FITTING:
            self._train_loader = self._resumed = None

    def dataset(self, split: Split | None = None) -> ActivationDataset:
        """Rows of a split, or of all splits, in the run's order.

        Where rows are held in memory, they are as long as this data module.

        Raises:
            RunError: there is no such row; the message tells how many each split has.
        """
        weights = self._rows.class_weights if split == "train" else None
        normaliser = None if self._on_device else self.normaliser
        dataset = self._served_layers.dataset(self._rows[split], normaliser, self._dtype, weights)
        if self._loading.in_memory:
            if split not in self._held:
                self._held[split] = dataset.copied()
            dataset.held = self._held[split]
        return dataset

    def train_dataloader(self) -> DataLoader[Batch]:
        """The train split, shuffled anew each epoch; what is left of a resumed epoch."""
        order = self._rows.train_order
        n_ranks, rank = ranks()
        sampler = BatchSampler(BatchPlan(len(order), self._batch_size, n_ranks, self._tail), rank, order)
        loader = self._loader_of("train", sampler)
        loader.identity = self._rows.identity
        if self._resumed is not None:
            resume_sampler(sampler, self._resumed, loader.identity)
        if self.trainer is not None:
            sampler.set_epoch(self.trainer.current_epoch)
            self._agree_on_length(self.trainer, sampler)
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """The validation split."""
        return self.ordered_dataloader("validation")

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test split."""
        return self.ordered_dataloader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Every row of the run that `rows` and `labelled_only` let through."""
        return self.ordered_dataloader()

    def ordered_dataloader(self, split: Split | None = None) -> DataLoader[Batch]:
        """Every row of a split, or of all splits, once, in the run's order, shared between the ranks."""
        n_ranks, rank = ranks()
        plan = BatchPlan(len(self._rows[split]), self._batch_size, n_ranks)
        return self._loader_of(split, BatchSampler(plan, rank))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Give `x` its dtype and scale where the Trainer has moved it."""
        return {**batch, "x": self.normaliser(batch["x"], self._dtype)} if self._on_device else batch

    def state_dict(self) -> dict[str, Any]:
        """How far training has come in its epoch, as plain values; empty before it has begun."""
        return trained_state(self._train_loader, self.trainer, self._resumed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next `train_dataloader` go on where a state says; of no effect beside training."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._resumed = state_dict

    def shuffle_quality(self, epoch: int = 0) -> ShuffleQuality:
        """How well the order of an epoch mixes the run's packs in batches of one rank.

        Raises:
            SettingsError: `batch_size` is None, or beyond the rows that there are.
        """
        if self._batch_size is None:
            raise SettingsError("a whole split at once has no order to measure; set batch_size")
        return self._rows.shuffle_quality(epoch, self._batch_size)

    def _loader_of(self, split: Split | None, sampler: BatchSampler) -> ActivationLoader:
        arguments = loader_arguments(self._num_workers, self._loading)
        return ActivationLoader(self.dataset(split), sampler=sampler, **arguments)

    def _agree_on_length(self, trainer: Any, sampler: BatchSampler) -> None:
        """Have the Trainer ask for a new loader after an epoch of another number of batches.

        It takes the number once, from the first loader; an epoch that was begun by other ranks or with
        another batch size has its own.
        """
        if self._reload_every is not None:
            trainer.reload_dataloaders_every_n_epochs = self._reload_every
            self._reload_every = None
        counted = trainer.fit_loop.epoch_loop.batch_progress.current
        if (
            sampler.n_batches_done == len(sampler) < len(sampler.plan)
            and counted.completed < counted.processed
        ):
            # A checkpoint of the last batch's hooks: the Trainer goes to the next epoch, but if that one has
            # more batches, it takes those of the last one for its first.
            following = Progress(sampler.epoch + 1, sampler.n_batches_done)
            self._resumed = {**(self._resumed or {}), **asdict(following)}
            sampler.resume(following)
            sampler.set_epoch(following.epoch)
        if len(sampler) != len(sampler.plan):
            self._reload_every = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1
