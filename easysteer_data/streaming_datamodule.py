"""Serves one layer of a run at a URL to Lightning, as a stream. Knows runs through the shards room.

For a run on a local disk, ActivationDataModule is faster, shuffles fully, and resumes with other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from easysteer_data.data_options import (
    DTYPES,
    Normalisation,
    RowFilter,
    ServedDtype,
    check_choice,
    coerce_options,
    plain_options,
)
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.serving.host import ranks
from easysteer_data.serving.loader import trained_state
from easysteer_data.serving.normalise import NORMALISATIONS, Normaliser, normaliser_of, stored_moments
from easysteer_data.serving.rows import ChosenRows
from easysteer_data.serving.stream_loader import StreamLoader
from easysteer_data.shards import LabelHeader
from easysteer_data.shards.remote_files import FileCache, RemoteFiles
from easysteer_data.shards.remote_run import RemoteRun
from easysteer_data.shards.streaming import StreamedRows
from easysteer_data.types import Split, Stream


class StreamingDataModule(LightningDataModule):
    """Batches of one layer: `x` [B, width], `y`, `prompt`, `position` and `token_id` [B].

    Each row comes once an epoch, and every rank gets equally many batches, of at most `batch_size` rows; see
    StreamedRows. Needs at least as many shards as ranks times loader processes to keep them all busy.

    A Trainer's checkpoint holds how far training has come in its epoch. Resumed from it by as many ranks and
    loader processes, with the same batch size and order, the epoch goes on with the batches that are left;
    those that are done are streamed once more.

    Args:
        root: URL of the run folder, or `pipe:` and a command, see RemoteFiles.
        layer: which decoder block.
        stream: which of the run's streams.
        batch_size: the most rows of a batch on one rank.
        num_workers: loader processes; the order depends on it.
        seed: of the order of the train split, and of the draw of `rows.limit`.
        dtype: element type of `x`.
        labelled_only: leave out rows without a label, of every loader.
        rows: which rows every loader serves: a RowFilter, or its fields as a mapping. Any but the default
            reads the labels of all rows, 12 to 20 bytes each, before the first batch.
        normalise: how `x` is brought to a common scale, see Normaliser; by the run's statistics of the train
            split.
        buffer_rows: rows that each loader process mixes.
        options: of the file system, see RemoteFiles.
        cache: folder that keeps files for later epochs; None streams them anew.
        cache_bytes: what the folder may hold.
    """

    def __init__(
        self,
        root: str,
        layer: int,
        stream: Stream = "hidden_states",
        batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        dtype: ServedDtype = "float32",
        labelled_only: bool = False,
        rows: RowFilter | Mapping[str, Any] | None = None,
        normalise: Normalisation = "none",
        buffer_rows: int = 16_384,
        options: Mapping[str, Any] | None = None,
        cache: Path | str | None = None,
        cache_bytes: int = 64 * 2**30,
    ) -> None:
        super().__init__()
        check_choice("dtype", dtype, DTYPES)
        check_choice("normalise", normalise, NORMALISATIONS)
        self._filter = coerce_options(RowFilter, rows, "rows")
        rows = plain_options(self._filter)
        cache = None if cache is None else str(cache)
        # Not the options: they may hold keys to the store, and checkpoints are passed on.
        self.save_hyperparameters(ignore=["options"])
        self._files = RemoteFiles(
            root, dict(options or {}), cache=None if cache is None else FileCache(Path(cache), cache_bytes)
        )
        self._layer = layer
        self._stream = stream
        self._batch_size = batch_size
        self._num_workers = num_workers
        self._seed = seed
        self._dtype = getattr(torch, dtype)
        self._labelled_only = labelled_only
        self._normalise: Normalisation = normalise
        self._buffer_rows = buffer_rows
        self._train_loader: StreamLoader | None = None
        self._resumed: Mapping[str, Any] | None = None

    @cached_property
    def run(self) -> RemoteRun:
        """The run; its manifest is read when first asked for."""
        return RemoteRun(self._files)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.run.manifest.header.streams[self._stream].width

    @property
    def label(self) -> LabelHeader:
        """What the labels are: kind, and names of the classes."""
        return self.run.manifest.header.label

    @cached_property
    def normaliser(self) -> Normaliser:
        """What brings `x` to a common scale.

        Raises:
            SettingsError: some rows of the train split are left out, so that the run's statistics are not
                those of the rows that are served.
        """
        if self._normalise in ("none", "unit_norm"):
            return Normaliser(self._normalise)
        moments = stored_moments(self.run, self._stream, [self._layer], len(self._rows["train"]))
        if moments is None:
            raise SettingsError(
                f"normalise={self._normalise!r} goes by the statistics of all training rows, of which `rows`"
                " or `labelled_only` leave some out: serve all, or a local copy of the run (mirror_run)"
            )
        return normaliser_of(self._normalise, moments)

    def setup(self, stage: str | None = None) -> None:
        """Read the manifest; RunError unless the run holds the layer."""
        held = self.run.manifest.header.layers.get(self._stream, ())
        if self._layer not in held:
            raise RunError(f"{self._files.root} holds no layer {self._layer} of {self._stream}: {held}")
        if stage == TrainerFn.FITTING:
            self._resumed = None  # a checkpoint, if there is one, is restored after this

    def teardown(self, stage: str | None = None) -> None:
        """Forget the place in the training epoch."""
        if stage == TrainerFn.FITTING:
            self._train_loader = self._resumed = None

    def train_dataloader(self) -> StreamLoader:
        """The train split, mixed anew each epoch; what is left of a resumed epoch."""
        self._train_loader = self._loader("train", self._seed)
        if self._resumed is not None:
            self._train_loader.load_state_dict(self._resumed)
        return self._train_loader

    def val_dataloader(self) -> StreamLoader:
        """The validation split, in the order of the shards."""
        return self._loader("validation", None)

    def test_dataloader(self) -> StreamLoader:
        """The test split, in the order of the shards."""
        return self._loader("test", None)

    def predict_dataloader(self) -> StreamLoader:
        """Every row that `rows` and `labelled_only` let through, in the order of the shards."""
        return self._loader(None, None)

    def state_dict(self) -> dict[str, Any]:
        """How far training has come in its epoch, as plain values; empty before it has begun."""
        return trained_state(self._train_loader, self.trainer, self._resumed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next `train_dataloader` go on where a state says; of no effect beside training."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._resumed = state_dict

    @cached_property
    def _rows(self) -> ChosenRows:
        return ChosenRows(self.run, self._filter, self._labelled_only, self._seed)

    def _loader(self, split: Split | None, seed: int | None) -> StreamLoader:
        n_ranks, rank = ranks()
        chosen = np.zeros(self.run.n_rows, dtype=np.bool_)
        chosen[self._rows[split].numpy()] = True
        rows = StreamedRows(
            self.run,
            self._stream,
            self._layer,
            chosen,
            self._batch_size,
            self._buffer_rows,
            seed,
            n_ranks,
            rank,
            self._num_workers,
        )
        order = {
            "batch_size": self._batch_size,
            "buffer_rows": self._buffer_rows,
            "n_ranks": n_ranks,
            "num_workers": self._num_workers,
        }
        trainer = self.trainer
        return StreamLoader(
            rows,
            self.normaliser,
            self._dtype,
            None if trainer is None else lambda: trainer.current_epoch,
            self._rows.identity | order if split == "train" else order,
        )
