"""How elements of rows vary together and with the labels, summed over batches in float64. Knows no probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from easysteer_data.probes.standardise import CONSTANT, with_layers


@dataclass(frozen=True, slots=True)
class CrossMoments:
    """Moments of rows and targets: what every probe in closed form is made of.

    A class is one target a class, 1 for its rows and 0 for others; a numeric label is one target.

    Attributes:
        n_rows: rows seen.
        mean: float64 [layers, width].
        scatter: float64 [layers, width, width], summed products of deviations from the mean.
        target_mean: float64 [targets]; of classes, their shares.
        target_scatter: float64 [layers, width, targets], the same of elements and targets.
        target_deviation: float64 [targets], summed squares of the targets' deviations.
    """

    n_rows: int
    mean: torch.Tensor
    scatter: torch.Tensor
    target_mean: torch.Tensor
    target_scatter: torch.Tensor
    target_deviation: torch.Tensor

    @classmethod
    def of_batches(cls, batches: Iterable[Mapping[str, torch.Tensor]], n_classes: int) -> CrossMoments:
        """Moments of the `x` and `y` of all batches, of which there must be one, in one read.

        Memory does not grow with the rows: [layers, width, width] of float64.

        Args:
            batches: as the datamodule gives them.
            n_classes: 0 for numeric labels.
        """
        sums: _Sums | None = None
        for batch in batches:
            rows = with_layers(batch["x"]).double().transpose(0, 1)
            targets = _targets(batch["y"], n_classes)
            sums = sums or _Sums.around(rows.mean(dim=1), targets.mean(dim=0))
            sums.add(rows, targets)
        if sums is None:
            raise ValueError("no batches")
        return sums.moments()

    @property
    def std(self) -> torch.Tensor:
        """Population standard deviation, float64 [layers, width]; 1 for a constant element."""
        std = (self.scatter.diagonal(dim1=1, dim2=2).clamp(min=0) / self.n_rows).sqrt()
        return torch.where(std > CONSTANT * self.mean.abs(), std, 1.0)

    @property
    def class_counts(self) -> torch.Tensor:
        """Rows of each class, float64 [classes]."""
        return (self.target_mean * self.n_rows).round()

    def class_shifts(self) -> torch.Tensor:
        """From the mean of all rows to that of each class, float64 [layers, width, classes]."""
        return self.target_scatter / self.class_counts

    def within(self, layer: int) -> torch.Tensor:
        """Covariance within the classes, divided by the rows, of one layer, float64 [width, width]."""
        shifts = self.class_shifts()[layer]
        between = (shifts * self.class_counts) @ shifts.T
        return (self.scatter[layer] - between) / self.n_rows


class _Sums:
    """Sums of differences from some origin: plain products would lose what is small beside the mean."""

    def __init__(self, origin: torch.Tensor, target_origin: torch.Tensor) -> None:
        n_layers, width = origin.shape
        self.origin, self.target_origin = origin, target_origin
        self.n_rows = 0
        self.total, self.target_total = torch.zeros_like(origin), torch.zeros_like(target_origin)
        self.products = origin.new_zeros(n_layers, width, width)
        self.target_products = origin.new_zeros(n_layers, width, len(target_origin))
        self.target_squares = torch.zeros_like(target_origin)

    @classmethod
    def around(cls, origin: torch.Tensor, target_origin: torch.Tensor) -> _Sums:
        """Sums of nothing yet, with an origin near the rows' mean."""
        return cls(origin, target_origin)

    def add(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        """Add rows [layers, n, width] and targets [n, targets], float64."""
        rows = rows - self.origin[:, None]
        targets = targets - self.target_origin
        self.n_rows += rows.shape[1]
        self.total += rows.sum(dim=1)
        self.target_total += targets.sum(dim=0)
        self.products.baddbmm_(rows.mT, rows)
        self.target_products += torch.matmul(rows.mT, targets)
        self.target_squares += targets.square().sum(dim=0)

    def moments(self) -> CrossMoments:
        """What they come to."""
        shift, target_shift = self.total / self.n_rows, self.target_total / self.n_rows
        return CrossMoments(
            n_rows=self.n_rows,
            mean=self.origin + shift,
            scatter=self.products.baddbmm_(shift[:, :, None], shift[:, None], alpha=-self.n_rows),
            target_mean=self.target_origin + target_shift,
            target_scatter=self.target_products - self.n_rows * shift[:, :, None] * target_shift,
            target_deviation=self.target_squares - self.n_rows * target_shift.square(),
        )


def _targets(y: torch.Tensor, n_classes: int) -> torch.Tensor:
    if n_classes:
        return torch.nn.functional.one_hot(y, n_classes).double()
    return y.double()[:, None]
