"""Difference of means (Belrose 2023; Rimsky et al. 2024), plain or free of a confound. Knows no run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import RunError
from easysteer_data.vectors.contrast import Contrast


@dataclass(frozen=True)
class DifferenceOfMeans:
    """Mean positive row minus mean negative row; needs the class means alone."""

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        return contrast.difference


@dataclass(frozen=True)
class BalancedDifferenceOfMeans:
    """The mean, over the values of the confound field, of the difference of means among its rows.

    Each difference compares rows of one value, such as answers that are all "(A)", so that what the value
    adds to a row is in none of them, however often it goes with one class.

    Attributes:
        orthogonal: leave out what lies along the steps between the values. The difference of the classes is
            seldom square to them, and where they are many times longer, as the step from the token "A" to "B"
            is, a row's projection still tells its value before its class, and adding the vector shifts both.
    """

    orthogonal: bool = True

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        rows = contrast.rows
        values, sides = rows.means_by_confound(rows.x)
        if not values:
            raise RunError(
                "no value of the confound field has rows of both classes in the train split; name a field of "
                "the prompts as vector.confound, or use diff_means"
            )
        difference = (sides[:, 1] - sides[:, 0]).mean(dim=0)
        return _orthogonal_to(difference, sides.mean(dim=1)) if self.orthogonal else difference


def _orthogonal_to(difference: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The difference [layers, width] less its part along steps between centres [values, layers, width]."""
    steps = (centres - centres.mean(dim=0)).permute(1, 2, 0)
    axes, lengths, _ = torch.linalg.svd(steps, full_matrices=False)
    norms = centres.norm(dim=-1).amax(dim=0)  # beside which the rounding of a step is none
    axes = axes * (lengths > 1e-12 * norms[:, None])[:, None]
    return difference - torch.matmul(axes, torch.matmul(axes.mT, difference[..., None])).squeeze(-1)
