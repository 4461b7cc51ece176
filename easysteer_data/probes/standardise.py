"""Mean and spread of every feature, exact, in one pass over batches. Knows no split and no probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import distributed

# A feature counts as constant below this spread relative to its mean: rounding of float64 sums stays
# under it, and float32 values that differ at all lie 60,000 times above it.
CONSTANT = 1e-12

_BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and spread of rows.

    Attributes:
        n_rows: rows seen.
        mean: float64 [layers, width].
        deviation: float64 [layers, width], sum of squared deviations from the mean.
    """

    n_rows: int
    mean: torch.Tensor
    deviation: torch.Tensor

    @classmethod
    def of_rows(cls, x: torch.Tensor) -> Moments:
        """Moments of one batch, [rows, layers, width] or [rows, width] (one layer), of at least one row."""
        layers = [cls._of_layer(rows) for rows in with_layers(x).unbind(dim=1)]
        means, deviations = zip(*layers, strict=True)
        return cls(len(x), torch.stack(means), torch.stack(deviations))

    @staticmethod
    def _of_layer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and summed squared deviations [width] of rows [rows, width], block by block in the cache."""
        origin = x[:_BLOCK_ROWS].double().mean(dim=0)
        total, squares = torch.zeros_like(origin), torch.zeros_like(origin)
        for block in torch.split(x, _BLOCK_ROWS):
            shifted = block.double().sub_(origin)
            total += shifted.sum(dim=0)
            squares += shifted.square_().sum(dim=0)
        shift = total / len(x)
        return origin + shift, (squares - shift.square() * len(x)).clamp_(min=0)

    @classmethod
    def of_batches(cls, batches: Iterable[Mapping[str, torch.Tensor]]) -> Moments:
        """Moments of the `x` of all batches; there must be one."""
        return reduce(Moments.merged, (cls.of_rows(batch["x"]) for batch in batches))

    def merged(self, other: Moments) -> Moments:
        """Moments of both sets of rows together (Chan, Golub and LeVeque 1979)."""
        n_rows = self.n_rows + other.n_rows
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.n_rows / n_rows)
        between = shift.square() * (self.n_rows * other.n_rows / n_rows)
        return Moments(n_rows, mean, self.deviation + other.deviation + between)

    def over_all_ranks(self, device: torch.device) -> Moments:
        """Moments of the rows of every rank, the same on all, where torch.distributed is initialised.

        Args:
            device: what the process group's backend exchanges tensors on.
        """
        if not (distributed.is_available() and distributed.is_initialized()):
            return self
        n_rows = torch.full_like(self.mean, self.n_rows)  # exact: float64 holds whole numbers to 2^53
        mine = torch.stack([n_rows, self.mean, self.deviation]).to(device)
        parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, mine)
        moments = (Moments(int(n[0, 0]), mean, deviation) for n, mean, deviation in (p.cpu() for p in parts))
        return reduce(Moments.merged, moments)

    @property
    def std(self) -> torch.Tensor:
        """Population standard deviation, float64 [layers, width]; 1 for a constant feature."""
        std = (self.deviation / self.n_rows).sqrt()
        return torch.where(std > CONSTANT * self.mean.abs(), std, 1.0)


def with_layers(x: torch.Tensor) -> torch.Tensor:
    """Rows as [rows, layers, width], whether or not they came with an axis of layers."""
    return x.unsqueeze(1) if x.ndim == 2 else x
