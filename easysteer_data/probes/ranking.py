"""Examples in the order of a score, with ties: areas under curves, ranks, for many weightings at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Ranking:
    """Examples sorted by score, the lowest first, equal scores in one place.

    Attributes:
        order: int64 [n], the examples in that order.
        place: int64 [n], place of each of them in `order`, ascending from 0.
        positive: float64 [n], 1 for those of the positive class, in that order.
    """

    order: torch.Tensor
    place: torch.Tensor
    positive: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, positive: torch.Tensor) -> Ranking:
        """Sort scores float64 [n]; `positive` is bool [n]."""
        ordered, order = scores.sort(stable=True)
        return cls(order, places(ordered), positive[order].double())

    def areas(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Area under the ROC curve, ties counting half, and average precision, each [draws].

        NaN where a draw lacks one of the sides.

        Args:
            weights: float64 [draws, n], of the examples in their own order.
        """
        weights = weights[:, self.order]
        above = self._by_place(weights * self.positive)
        below = self._by_place(weights * (1 - self.positive))
        n_positive, n_negative = above.sum(dim=1, keepdim=True), below.sum(dim=1, keepdim=True)
        lower = below.cumsum(dim=1) - below / 2
        auroc = (above * lower).sum(dim=1) / (n_positive * n_negative)[:, 0]
        # From the highest score down: those found so far, and how many of them are positive.
        found = (above + below).flip(1).cumsum(dim=1)
        true = above.flip(1).cumsum(dim=1)
        precision = torch.where(found > 0, true / found, 0.0)
        average = (above.flip(1) * precision).sum(dim=1) / n_positive[:, 0]
        return auroc, torch.where(n_negative[:, 0] > 0, average, torch.nan)

    def _by_place(self, values: torch.Tensor) -> torch.Tensor:
        return sums_by_place(values, self.place)


def places(ordered: torch.Tensor) -> torch.Tensor:
    """Place of each of ascending values [n], equal ones in the same, int64 [n]."""
    steps = torch.ones(len(ordered), dtype=torch.int64)
    steps[1:] = ordered[1:] != ordered[:-1]
    return steps.cumsum(0) - 1


def sums_by_place(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Sums [draws, places] of values [draws, n] in the same place."""
    n_places = int(place[-1]) + 1
    if n_places == len(place):
        return values
    return values.new_zeros(len(values), n_places).index_add_(1, place, values)


def rank_means(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Rank of each value [n] in every weighting [draws, n], that of equal ones their mean, [draws, n]."""
    ordered, order = values.sort(stable=True)
    place = places(ordered)
    count = sums_by_place(weights[:, order], place)
    rank = count.cumsum(dim=1) - (count - 1) / 2
    result = torch.empty_like(weights)
    result[:, order] = rank[:, place]
    return result


def roc_points(
    scores: torch.Tensor, positive: torch.Tensor, max_points: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """False and true positive rates of every threshold, from the highest down, each beginning with 0.

    Args:
        scores: float64 [n].
        positive: bool [n].
        max_points: of more, evenly many are left out; the ends stay.
    """
    ranking = Ranking.of(scores, positive)
    by_place = [
        sums_by_place(side[None], ranking.place)[0] for side in (1 - ranking.positive, ranking.positive)
    ]
    false, true = (torch.cat([side.new_zeros(1), side.flip(0).cumsum(0) / side.sum()]) for side in by_place)
    kept = torch.linspace(0, len(true) - 1, min(len(true), max_points)).round().long()
    return false[kept], true[kept]
