"""Figures of one layer's scores on one split, for many weightings of the examples at once. Knows no run.

Weights are float64 [draws, examples], see Bootstrap; every figure is float64 [draws], NaN where undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from easysteer_data.probes.bootstrap import Bootstrap
from easysteer_data.probes.layer_result import Figures
from easysteer_data.probes.ranking import Ranking, rank_means


@dataclass(frozen=True, slots=True)
class ClassScores:
    """What a probe says of examples of known classes.

    Attributes:
        scores: float64 [n, classes], higher for the classes that are likelier.
        chances: float64 [n, classes], each between 0 and 1, 1 in sum.
        target: int64 [n].
    """

    scores: torch.Tensor
    chances: torch.Tensor
    target: torch.Tensor

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.scores.shape[1]

    @property
    def predicted(self) -> torch.Tensor:
        """Class of the highest score, int64 [n]."""
        return self.scores.argmax(dim=1)

    def one_against_rest(self, label: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What ranks examples by a class, float64 [n], and which are of it, bool [n].

        For two classes the difference of scores, which, unlike chances, keeps sure examples apart.
        """
        if self.n_classes == 2:
            ranked = self.scores[:, label] - self.scores[:, 1 - label]
        else:
            ranked = self.chances[:, label]
        return ranked, self.target == label

    def certainty(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What calibration compares: a predicted chance, and whether it came true; see CalibrationBin."""
        if self.n_classes == 2:
            return self.chances[:, 1], self.target == 1
        return self.chances.amax(dim=1), self.predicted == self.target


def class_figures(examples: ClassScores, groups: torch.Tensor, bootstrap: Bootstrap, n_bins: int) -> Figures:
    """Accuracy, AUROC, average precision, ECE and Brier score; of several classes macro means.

    Args:
        examples: scores and classes; every class has an example.
        groups: int64 [n], what is drawn as a whole.
        bootstrap: the draws.
        n_bins: bins of equal width of the ECE.
    """
    labels = [1] if examples.n_classes == 2 else list(range(examples.n_classes))
    rankings = [Ranking.of(*examples.one_against_rest(label)) for label in labels]
    one_hot = torch.nn.functional.one_hot(examples.target, examples.n_classes).double()
    squares = (examples.chances - one_hot).square().sum(dim=1)
    sums = torch.stack(
        [(examples.predicted == examples.target).double(), squares / (2 if examples.n_classes == 2 else 1)],
        dim=1,
    )
    chance, came_true = examples.certainty()
    gaps = bin_of(chance, n_bins, one_hot=True) * (chance - came_true.double())[:, None]
    found: dict[str, list[torch.Tensor]] = {}
    for weights in bootstrap.weights(groups):
        total = weights.sum(dim=1)
        accuracy, brier = (torch.mm(weights, sums) / total[:, None]).unbind(dim=1)
        areas = torch.stack([torch.stack(ranking.areas(weights)) for ranking in rankings]).mean(dim=0)
        draws = {
            "accuracy": accuracy,
            "auroc": areas[0],
            "average_precision": areas[1],
            "ece": torch.mm(weights, gaps).abs().sum(dim=1) / total,
            "brier": brier,
        }
        for name, values in draws.items():
            found.setdefault(name, []).append(values)
    return _figures(found, bootstrap)


def number_figures(
    predicted: torch.Tensor, target: torch.Tensor, groups: torch.Tensor, bootstrap: Bootstrap
) -> Figures:
    """R2, mean absolute error, Pearson's and Spearman's correlation of numbers [n] and their labels [n]."""
    # Centred, so that sums of squares lose nothing.
    y = target.double() - target.double().mean()
    p = predicted.double() - predicted.double().mean()
    error = predicted.double() - target.double()
    sums = torch.stack([y, p, y * y, p * p, y * p, error.square(), error.abs()], dim=1)
    found: dict[str, list[torch.Tensor]] = {}
    for weights in bootstrap.weights(groups):
        mean_y, mean_p, yy, pp, yp, squared, absolute = (
            torch.mm(weights, sums) / weights.sum(dim=1, keepdim=True)
        ).unbind(dim=1)
        variance_y, variance_p = yy - mean_y**2, pp - mean_p**2
        draws = {
            "r2": 1 - squared / _positive(variance_y),
            "mae": absolute,
            "pearson": (yp - mean_y * mean_p) / (_positive(variance_y) * _positive(variance_p)).sqrt(),
            "spearman": _correlation(rank_means(p, weights), rank_means(y, weights), weights),
        }
        for name, values in draws.items():
            found.setdefault(name, []).append(values)
    return _figures(found, bootstrap)


def bin_of(chance: torch.Tensor, n_bins: int, one_hot: bool = False) -> torch.Tensor:
    """Bin of equal width of each chance [n], int64 [n], or float64 [n, bins] of zeros and ones."""
    bins = (chance * n_bins).long().clamp(0, n_bins - 1)
    return torch.nn.functional.one_hot(bins, n_bins).double() if one_hot else bins


def _correlation(a: torch.Tensor, b: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted correlation [draws] of values [draws, n]."""
    total = weights.sum(dim=1, keepdim=True)
    a = a - (weights * a).sum(dim=1, keepdim=True) / total
    b = b - (weights * b).sum(dim=1, keepdim=True) / total
    square = (weights * a * a).sum(dim=1) * (weights * b * b).sum(dim=1)
    return (weights * a * b).sum(dim=1) / _positive(square).sqrt()


def _positive(values: torch.Tensor) -> torch.Tensor:
    """NaN where a spread is 0 but for rounding."""
    return torch.where(values > 1e-24, values, torch.nan)


def _figures(found: Mapping[str, list[torch.Tensor]], bootstrap: Bootstrap) -> Figures:
    return {name: bootstrap.figure(torch.cat(values)) for name, values in found.items()}
