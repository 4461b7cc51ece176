"""The rows of each split that are served, and the order of the train split's. Knows no layer and no rank."""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any

import numpy as np
import torch

from easysteer_data.data_options import RowFilter, RowOrder
from easysteer_data.errors import RunError
from easysteer_data.serving.order import (
    Classes,
    EpochOrder,
    ShuffleQuality,
    class_weights,
    shuffle_quality,
)
from easysteer_data.serving.rows import choose_rows
from easysteer_data.serving.sampler import RowNumbers
from easysteer_data.shards import Run
from easysteer_data.types import SPLITS, Split


class SplitRows:
    """Row numbers of a run by split, each resolved once.

    Args:
        run: the run.
        rows: which rows are served.
        order: of the train split.
        labelled_only: leave out rows without a label.
        seed: of the order, and of the draw of `rows.limit`.
    """

    def __init__(
        self, run: Run, rows: RowFilter, order: RowOrder, labelled_only: bool = False, seed: int = 0
    ) -> None:
        self._run = run
        self._filter = rows
        self._order = order
        self._labelled_only = labelled_only
        self._seed = seed
        self._numbers: dict[Split | None, torch.Tensor] = {}

    def __getitem__(self, split: Split | None) -> torch.Tensor:
        """Row numbers of a split, or of all splits, int64 [n], ascending.

        Raises:
            RunError: there are none; the message tells how many each split has.
        """
        numbers = self._chosen(split)
        if len(numbers) == 0:
            counts = ", ".join(f"{name} {len(self._chosen(name))}" for name in SPLITS)
            kind = "rows with a label" if self._labelled_only else "rows"
            passed = "" if self._filter == RowFilter() else " pass the filter"
            raise RunError(f"{self._run.path}: no {kind}{passed} in split {split or 'all'!r}; rows: {counts}")
        return numbers

    @cached_property
    def train_order(self) -> EpochOrder:
        """The order of the train split's rows, as places among them."""
        balanced = self._order.balance in ("undersample", "oversample")
        return EpochOrder(
            len(self["train"]),
            self._seed,
            self._order,
            self._blocks if self._order.shuffle == "blocks" else None,
            self._classes if balanced else None,
        )

    @property
    def class_weights(self) -> torch.Tensor | None:
        """Weight of each class in training, float32 [classes], where they are asked for."""
        if self._order.balance != "weights":
            return None
        return class_weights(self._classes, len(self._run.manifest.header.label.names))

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values that determine the order of the train split's rows; `n_rows` is an epoch's."""
        return {
            "run": self._run.manifest.header.fingerprint,
            "seed": self._seed,
            "shuffle": self._order.shuffle,
            "window_rows": self._order.window_rows,
            "balance": self._order.balance,
            "n_rows": len(self.train_order),
            "crc32 of the row numbers": zlib.crc32(self["train"].numpy().data),
        }

    def shuffle_quality(self, epoch: int, batch_size: int) -> ShuffleQuality:
        """How well the order of an epoch mixes the run's packs, whichever shuffle made it."""
        return shuffle_quality(self.train_order(epoch), self._blocks, batch_size)

    @property
    def _blocks(self) -> RowNumbers:
        """First place of each pack that the train split has rows of."""
        rows = self["train"].numpy()
        places = np.unique(rows.searchsorted(self._run.pack_starts))
        return places[places < len(rows)]

    @property
    def _classes(self) -> Classes:
        """Class of each row of the train split, int64; RunError where the run's labels are no classes."""
        labels, header = self._run.labels, self._run.manifest.header.label
        if labels is None or header.kind != "classes":
            raise RunError(f"{self._run.path} has {header}, but only classes can be balanced")
        classes: Classes = labels[self["train"]].numpy()
        return classes

    def _chosen(self, split: Split | None) -> torch.Tensor:
        if split not in self._numbers:
            rows = choose_rows(self._run, split, self._filter, self._labelled_only, self._seed)
            self._numbers[split] = torch.from_numpy(rows)
        return self._numbers[split]
