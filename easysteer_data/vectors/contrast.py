"""Rows of two classes, what an estimator learns a direction from. Knows no run, no layer id and no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows of some layers, each of the negative or the positive class.

    Attributes:
        x: float64 [n, layers, width].
        positive: bool [n].
        group: int64 [n], number of the row's group; -1 for none.
        confound: int64 [n], number of the confound field's value, such as a letter; -1 for none.
    """

    x: torch.Tensor
    positive: torch.Tensor
    group: torch.Tensor
    confound: torch.Tensor

    @property
    def has_both_classes(self) -> bool:
        """Whether there is a row of each class."""
        return bool(self.positive.any()) and not bool(self.positive.all())

    def class_means(self) -> torch.Tensor:
        """Mean row of the negative and of the positive class, float64 [2, layers, width]."""
        return torch.stack([self.x[~self.positive].mean(dim=0), self.x[self.positive].mean(dim=0)])

    def means_by_confound(self, values: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Means of the values [n, ...] by the confound and the class of their rows.

        Returns:
            Numbers of the confound that have rows of both classes, ascending, and the means over the negative
            and the positive rows of each, [numbers, 2, ...].
        """
        numbers, means = [], []
        for number in torch.unique(self.confound[self.confound >= 0]).tolist():
            sides = [(self.confound == number) & side for side in (~self.positive, self.positive)]
            if all(bool(side.any()) for side in sides):
                numbers.append(number)
                means.append(torch.stack([values[side].mean(dim=0) for side in sides]))
        return numbers, torch.stack(means) if means else values.new_zeros(0, 2, *values.shape[1:])

    def pairs(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means of the values [n, ...] over the positive and over the negative rows of each group.

        A group of one row each is a pair in the strict sense; a group that lacks a side is none.

        Returns:
            Positive and negative sides, each [pairs, ...], in the order of the groups' numbers.
        """
        grouped = self.group >= 0
        group, positive, values = self.group[grouped], self.positive[grouped], values[grouped]
        n_groups = int(group.max()) + 1 if len(group) else 0
        sides, counts = [], []
        for side in (positive, ~positive):
            counts.append(torch.bincount(group[side], minlength=n_groups))
            sums = values.new_zeros(n_groups, *values.shape[1:])
            sides.append(sums.index_add_(0, group[side], values[side]))
        whole = (counts[0] > 0) & (counts[1] > 0)
        divisor = [count[whole].view(-1, *[1] * (values.ndim - 1)) for count in counts]
        return sides[0][whole] / divisor[0], sides[1][whole] / divisor[1]


@dataclass(frozen=True)
class Contrast:
    """The train split's two classes; the rows themselves are read when they are first asked for.

    Attributes:
        means: mean row of the negative and of the positive class, float64 [2, layers, width].
        mean_norm: mean L2 norm of a row, float64 [layers].
        load: reads the rows; raises RunError where the run keeps statistics only.
    """

    means: torch.Tensor
    mean_norm: torch.Tensor
    load: Callable[[], LabelledRows]

    @cached_property
    def rows(self) -> LabelledRows:
        """The rows; RunError where the run keeps statistics only."""
        return self.load()

    @property
    def difference(self) -> torch.Tensor:
        """From the mean row of the negative class to that of the positive one, float64 [layers, width]."""
        return self.means[1] - self.means[0]

    def step_along(self, axes: torch.Tensor) -> torch.Tensor:
        """The part of `difference` that lies along each layer's axis (of any length and sign).

        So every estimator's vector points to the positive class and is as long as the classes are apart.

        Args:
            axes: float64 [layers, width].
        """
        units = axes / axes.norm(dim=-1, keepdim=True)
        lengths = (units * self.difference).sum(dim=-1, keepdim=True)
        return torch.mul(units, lengths)
