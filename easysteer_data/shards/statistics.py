"""Statistics of rows as they were captured: of one split or all, and per class. Records that can be merged.

Knows no file and no tensor of rows. All figures are float64; the order of merging decides the last bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from easysteer_data.shards.storage import StorageError


@dataclass(frozen=True, slots=True)
class LabelMeans:
    """Mean row of each class, in the order of LabelHeader.names; zeros where a class has no row.

    Attributes:
        n_rows: int64 [n_classes].
        mean: float64 [n_classes, width].
    """

    n_rows: torch.Tensor
    mean: torch.Tensor

    def merged(self, other: LabelMeans) -> LabelMeans:
        """The means of both sets of rows together."""
        n_rows = self.n_rows + other.n_rows
        total = self.n_rows[:, None] * self.mean + other.n_rows[:, None] * other.mean
        return LabelMeans(n_rows, total / n_rows.clamp(min=1)[:, None])


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Statistics of n rows of one layer, as captured, before storage rounds them; zeros where n is 0.

    Attributes:
        n_rows: how many rows.
        mean: float64 [width].
        mean_square: float64 [width], mean of the squares; the variance is mean_square - mean ** 2.
        mean_norm: mean L2 norm of a row.
        max_abs: largest absolute value; not finite if any value is not.
        by_label: means per class; None for runs without class labels or with more than MAX_CLASS_MEANS.
    """

    n_rows: int
    mean: torch.Tensor
    mean_square: torch.Tensor
    mean_norm: float
    max_abs: float
    by_label: LabelMeans | None = None

    @property
    def sum_square(self) -> float:
        """Sum of the squared norms of all rows."""
        return self.n_rows * float(self.mean_square.sum())

    def merged(self, other: RowStatistics) -> RowStatistics:
        """Statistics of both sets of rows together."""
        n_rows = self.n_rows + other.n_rows
        mine, theirs = self.n_rows / max(n_rows, 1), other.n_rows / max(n_rows, 1)
        by_label = self.by_label
        if by_label is not None and other.by_label is not None:
            by_label = by_label.merged(other.by_label)
        return RowStatistics(
            n_rows,
            mine * self.mean + theirs * other.mean,
            mine * self.mean_square + theirs * other.mean_square,
            mine * self.mean_norm + theirs * other.mean_norm,
            float(np.maximum(self.max_abs, other.max_abs)),  # keeps a NaN, max() may not
            by_label,
        )


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """All that is known of one layer's rows.

    Attributes:
        splits: statistics of each split's rows, in the order of SPLITS.
        storage_error: what storage lost; None where no rows are stored.
    """

    splits: tuple[RowStatistics, ...]
    storage_error: StorageError | None

    @property
    def total(self) -> RowStatistics:
        """Statistics of the rows of every split."""
        return merge(self.splits)

    def merged(self, other: LayerStatistics) -> LayerStatistics:
        """Those of both sets of rows together."""
        error = self.storage_error
        if error is not None and other.storage_error is not None:
            error = error.merged(other.storage_error)
        splits = (one.merged(two) for one, two in zip(self.splits, other.splits, strict=True))
        return LayerStatistics(tuple(splits), error)


def merge(parts: Iterable[RowStatistics]) -> RowStatistics:
    """Statistics of all rows of the parts together, of which there must be one at least."""
    return reduce(RowStatistics.merged, parts)
