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
    """

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        rows = contrast.rows
        differences = []
        for value in torch.unique(rows.confound):
            alike = rows.confound == value
            positive, negative = alike & rows.positive, alike & ~rows.positive
            if value >= 0 and positive.any() and negative.any():
                differences.append(rows.x[positive].mean(dim=0) - rows.x[negative].mean(dim=0))
        if not differences:
            raise RunError(
                "no value of the confound field has rows of both classes in the train split; name a field of "
                "the prompts as vector.confound, or use diff_means"
            )
        return torch.stack(differences).mean(dim=0)
