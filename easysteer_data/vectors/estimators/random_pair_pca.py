"""Linear artificial tomography: the principal axis of differences between random rows. Knows no run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import RunError
from easysteer_data.vectors.contrast import Contrast
from easysteer_data.vectors.estimators.principal import principal_axes


@dataclass(frozen=True)
class RandomPairPCA:
    """First principal axis of differences between rows paired at random (LAT; Zou et al. 2023, section 3.1).

    Labels decide the sign and the length, not the axis.

    Attributes:
        seed: of the pairing; an odd row out is left out.
    """

    seed: int = 0

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        x = contrast.rows.x
        if len(x) < 2:
            raise RunError("lat needs two rows in the train split at least")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))
        shuffled = x[order[: len(x) // 2 * 2]]
        return contrast.step_along(principal_axes(shuffled[::2] - shuffled[1::2]))
