"""Serves one layer of a run at a URL to Lightning, as a stream. Knows runs through the shards room.

For a run on a local disk, ActivationDataModule is faster, shuffles fully, and goes on within an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from easysteer_data.data_options import DTYPES, ServedDtype, check_choice
from easysteer_data.errors import RunError
from easysteer_data.serving.loader import Batch, ranks
from easysteer_data.shards import LabelHeader
from easysteer_data.shards.remote_files import FileCache, RemoteFiles
from easysteer_data.shards.streaming import RemoteRun, StreamedRows
from easysteer_data.types import Split, Stream


class StreamingDataModule(LightningDataModule):
    """Batches of one layer: `x` [B, width], `y`, `prompt`, `position` and `token_id` [B].

    Each row comes once an epoch, and every rank gets equally many batches, of at most `batch_size` rows; see
    StreamedRows. Needs at least as many shards as ranks times loader processes to keep them all busy.

    Args:
        root: URL of the run folder, or `pipe:` and a command, see RemoteFiles.
        layer: which decoder block.
        stream: which of the run's streams.
        batch_size: the most rows of a batch on one rank.
        num_workers: loader processes; the order depends on it.
        seed: of the order of the train split.
        dtype: element type of `x`.
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
        buffer_rows: int = 16_384,
        options: Mapping[str, Any] | None = None,
        cache: Path | str | None = None,
        cache_bytes: int = 64 * 2**30,
    ) -> None:
        super().__init__()
        check_choice("dtype", dtype, DTYPES)
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
        self._buffer_rows = buffer_rows

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

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002 - the hook's signature
        """Read the manifest; RunError unless the run holds the layer."""
        held = self.run.manifest.header.layers.get(self._stream, ())
        if self._layer not in held:
            raise RunError(f"{self._files.root} holds no layer {self._layer} of {self._stream}: {held}")

    def train_dataloader(self) -> EpochLoader:
        """The train split, mixed anew each epoch."""
        return self._loader("train", self._seed)

    def val_dataloader(self) -> EpochLoader:
        """The validation split, in the order of the shards."""
        return self._loader("validation", None)

    def test_dataloader(self) -> EpochLoader:
        """The test split, in the order of the shards."""
        return self._loader("test", None)

    def _loader(self, split: Split, seed: int | None) -> EpochLoader:
        n_ranks, rank = ranks()
        rows = StreamedRows(
            self.run,
            self._stream,
            self._layer,
            split,
            self._batch_size,
            self._buffer_rows,
            seed,
            n_ranks,
            rank,
            self._num_workers,
        )
        loader = DataLoader(
            rows,
            batch_size=None,
            num_workers=self._num_workers,
            collate_fn=partial(_as_dtype, dtype=self._dtype),
            pin_memory=torch.accelerator.is_available(),
            # A store's threads don't live on in a forked process, which would wait for them for ever.
            multiprocessing_context="spawn" if self._num_workers else None,
            persistent_workers=self._num_workers > 0,
        )
        trainer = self.trainer
        return EpochLoader(rows, loader, None if trainer is None else lambda: trainer.current_epoch)


class EpochLoader:
    """Batches of StreamedRows, which are told the epoch when an iteration begins.

    Not a DataLoader but around one: Lightning takes the length of streams for a mistake.

    Args:
        rows: what is served.
        loader: loads it.
        epoch: says which epoch it is; None counts the iterations.
    """

    def __init__(
        self, rows: StreamedRows, loader: DataLoader[Batch], epoch: Callable[[], int] | None
    ) -> None:
        self._rows = rows
        self._loader = loader
        self._epoch = epoch
        self._n_iterations = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        self._rows.set_epoch(self._n_iterations if self._epoch is None else self._epoch())
        self._n_iterations += 1
        return iter(self._loader)


def _as_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    return {**batch, "x": batch["x"].to(dtype)}
