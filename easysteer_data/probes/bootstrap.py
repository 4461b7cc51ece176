"""Groups drawn again with replacement: the weights of examples in each draw, and the interval of a figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.probes.layer_result import Figure

_CHUNK_ELEMENTS = 4_000_000  # weights of all examples in some draws, float64


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are made.

    Attributes:
        n: draws; 0 for no intervals.
        interval: share of the draws' figures that lie inside, the rest on both sides alike.
        seed: of the draws.

    Raises:
        SettingsError: a value is out of range.
    """

    n: int = 1000
    interval: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 0 or not 0 < self.interval < 1:
            raise SettingsError(
                f"probe.bootstrap must be at least 0 and probe.interval between 0 and 1, found {self.n} and"
                f" {self.interval}"
            )

    def weights(self, groups: torch.Tensor) -> Iterator[torch.Tensor]:
        """How often each example comes, float64 [some draws, examples], until all draws are given.

        The first draw is the examples as they are, all 1. A group comes or is left out as a whole.

        Args:
            groups: int64 [examples].
        """
        _, codes = torch.unique(groups, return_inverse=True)
        n_groups = int(codes.max()) + 1
        generator = torch.Generator().manual_seed(self.seed)
        n_chunk = max(_CHUNK_ELEMENTS // len(groups), 1)
        yield torch.ones(1, len(groups), dtype=torch.float64)
        for start in range(0, self.n, n_chunk):
            n_draws = min(n_chunk, self.n - start)
            drawn = torch.randint(n_groups, (n_draws, n_groups), generator=generator)
            counts = torch.zeros(n_draws, n_groups, dtype=torch.float64)
            counts.scatter_add_(1, drawn, torch.ones_like(counts))
            yield counts[:, codes]

    def figure(self, values: torch.Tensor) -> Figure:
        """A figure of every draw, float64 [1 + n], that of the examples as they are first.

        A draw in which it is undefined, such as one without a class, counts for nothing.
        """
        value = _number(values[0])
        if self.n == 0 or value is None:
            return Figure(value)
        tail = (1 - self.interval) / 2
        bounds = torch.tensor([tail, 1 - tail], dtype=torch.float64)
        low, high = torch.nanquantile(values[1:], bounds)
        return Figure(value, _number(low), _number(high))


def _number(value: torch.Tensor) -> float | None:
    # Sums in another order differ in the last digits: nobody reads them, and they should decide nothing.
    return round(float(value), 9) if bool(value.isfinite()) else None
