"""Measures a shard's rows: sorts them by split and class, and sums each group. Knows no tar and no file.

All sums are float64, each part's in one thread, and in a fixed order, so that equal rows give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easysteer_data.shards.labels import NO_CLASS, LabelHeader
from easysteer_data.shards.statistics import LabelMeans, RowStatistics
from easysteer_data.shards.sum_rows import RowSums, sum_rows
from easysteer_data.types import SPLITS, CapturedPrompt

# Of a layer that are summed by themselves: a constant, since the last bits of the sums depend on it.
_PART_VALUES = 2**23


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one split and one class.

    Attributes:
        split: place in SPLITS.
        label: class index, NO_CLASS for rows without a label or where no means per class are kept.
        rows: int64 [n], their places among the shard's rows, ascending.
    """

    split: int
    label: int
    rows: torch.Tensor


def group_rows(prompts: Sequence[CapturedPrompt], label: LabelHeader) -> tuple[RowGroup, ...]:
    """Sort the rows of a shard's prompts by split, then class; groups without rows are left out."""
    labels = [NO_CLASS] * len(prompts)
    if label.n_class_means:
        labels = [int(value) for value in label.values(captured.prompt for captured in prompts)]
    splits = np.array([SPLITS.index(captured.prompt.split) for captured in prompts])
    n_codes = label.n_class_means + 1  # per split, NO_CLASS first
    codes = splits * n_codes + np.array(labels) - NO_CLASS
    codes = codes.repeat([captured.n_rows for captured in prompts])
    order = codes.argsort(kind="stable")  # rows stay in their order within a group
    found, starts = np.unique(codes[order], return_index=True)
    parts = np.split(order, starts[1:]) if len(found) else []
    return tuple(
        RowGroup(code // n_codes, code % n_codes + NO_CLASS, torch.from_numpy(part))
        for code, part in zip(found.tolist(), parts, strict=True)
    )


def parts_of(n_rows: int, width: int) -> list[range]:
    """The rows of a layer in parts that can be summed side by side; one at least."""
    n = max(1, _PART_VALUES // width)
    return [range(start, min(start + n, n_rows)) for start in range(0, max(n_rows, 1), n)]


def sum_part(rows: torch.Tensor, groups: Sequence[RowGroup], n_classes: int, part: range) -> list[SplitSums]:
    """Sums of each split's rows in a part of a layer's, in the order of SPLITS.

    Args:
        rows: [n, width] of a capture type, all of the layer's.
        groups: each row in one of them.
        n_classes: classes to keep means of, 0 for none.
        part: which of the rows.
    """
    sums = [SplitSums(rows.shape[1], n_classes) for _ in SPLITS]
    for group in groups:
        first, last = np.searchsorted(group.rows.numpy(), (part.start, part.stop)).tolist()
        if first < last:
            sums[group.split].add(group.label, last - first, sum_rows(rows, group.rows[first:last]))
    return sums


def statistics_of(parts: Iterable[Sequence[SplitSums]]) -> tuple[RowStatistics, ...]:
    """Statistics of all parts' rows together, by split; the first part's sums become those of all."""
    rest = iter(parts)
    total = next(rest)
    for part in rest:
        for split, more in zip(total, part, strict=True):
            split.add_sums(more)
    return tuple(split.statistics() for split in total)


class SplitSums:
    """Running sums of one split's rows; those without a class are in the last place of those per class."""

    def __init__(self, width: int, n_classes: int) -> None:
        self._n_rows = np.zeros(n_classes + 1, dtype=np.int64)
        self._total = np.zeros((n_classes + 1, width))
        self._total_square = np.zeros(width)
        self._total_norm = 0.0
        self._max_abs: np.float64 = np.float64(0)

    def add(self, label: int, n_rows: int, sums: RowSums) -> None:
        """Take rows of one class in."""
        self._n_rows[label] += n_rows
        self._total[label] += sums.total
        self._total_square += sums.total_square
        self._total_norm += sums.total_norm
        self._max_abs = np.maximum(self._max_abs, sums.max_abs)  # keeps a NaN, max() may not

    def add_sums(self, other: SplitSums) -> None:
        """Take the sums of other rows in."""
        self._max_abs = np.maximum(self._max_abs, other._max_abs)
        self._n_rows += other._n_rows
        self._total += other._total
        self._total_square += other._total_square
        self._total_norm += other._total_norm

    def statistics(self) -> RowStatistics:
        """Statistics of the rows so far."""
        n_rows = int(self._n_rows.sum())
        n = max(n_rows, 1)
        return RowStatistics(
            n_rows,
            torch.from_numpy(self._total.sum(axis=0) / n),
            torch.from_numpy(self._total_square / n),
            self._total_norm / n,
            float(self._max_abs),
            self._label_means(),
        )

    def _label_means(self) -> LabelMeans | None:
        n_rows, total = self._n_rows[:-1], self._total[:-1]
        if len(n_rows) == 0:
            return None
        mean = total / np.maximum(n_rows, 1)[:, None]
        return LabelMeans(torch.from_numpy(n_rows), torch.from_numpy(mean))
