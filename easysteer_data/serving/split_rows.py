"""The rows of each split that are served, and the order of the train split's. Knows no layer and no rank."""

from __future__ import annotations

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
from easysteer_data.serving.rows import ChosenRows
from easysteer_data.serving.sampler import RowNumbers
from easysteer_data.shards import Run


class SplitRows(ChosenRows):
    """Row numbers of a mapped run by split, and the order in which the train split's are served.

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
        super().__init__(run, rows, labelled_only, seed)
        self._run = run
        self._order = order

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
            **super().identity,
            "shuffle": self._order.shuffle,
            "window_rows": self._order.window_rows,
            "balance": self._order.balance,
            "n_rows": len(self.train_order),
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
