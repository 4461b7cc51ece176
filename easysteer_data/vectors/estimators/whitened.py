"""Mass-mean with covariance: the difference of means, whitened by the spread within classes. Knows no run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import RunError
from easysteer_data.vectors.contrast import Contrast

# Of the identity: rows that are mirror images of each other have an estimate of 0 and a singular covariance.
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class WhitenedDifference:
    """The inverse covariance within classes times the difference of means (Marks and Tegmark 2023).

    The covariance is that of standardised elements, shrunk towards a multiple of the identity as Ledoit and
    Wolf (2004) choose it, since there are often fewer rows than elements. An element that is constant within
    both classes is left out of the direction.
    """

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        rows = contrast.rows
        means = rows.class_means()
        within = rows.x - means[rows.positive.long()]
        std = within.square().mean(dim=0).sqrt()
        # Rounding of the means leaves a constant element with a spread of this order.
        varies = std > 1e-12 * means.abs().amax(dim=0)
        if not varies.any(dim=-1).all():
            raise RunError(
                "mass_mean needs rows of a class that differ from each other, and the train split has "
                f"{len(rows.x)} rows that do not; capture more prompts, or use diff_means"
            )
        inverse_std = torch.where(varies, 1 / std, 0.0)
        axes = [
            torch.linalg.solve(
                ledoit_wolf(within[:, layer] * inverse), (means[1] - means[0])[layer] * inverse
            )
            * inverse
            for layer, inverse in enumerate(inverse_std)
        ]
        return contrast.step_along(torch.stack(axes))


def ledoit_wolf(x: torch.Tensor) -> torch.Tensor:
    """Covariance [width, width] of centred rows [n, width], shrunk to be well conditioned.

    The weight of the identity is Ledoit and Wolf's (2004) estimate of the best one.
    """
    n_rows, width = x.shape
    covariance = x.T @ x / n_rows
    mean_variance = covariance.trace() / width
    identity = torch.eye(width, dtype=x.dtype)
    distance = (covariance - mean_variance * identity).square().sum()
    # How far one row's own outer product is from the covariance, on average, per row.
    noise = (x.square().sum(dim=1).square().mean() - covariance.square().sum()) / n_rows
    weight = (noise / distance).clamp(_LEAST_WEIGHT, 1) if distance > 0 else torch.ones(())
    return (1 - weight) * covariance + weight * mean_variance * identity
