"""Principal axis of the differences within pairs, as representation engineering takes it. Knows no run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import RunError
from easysteer_data.vectors.contrast import Contrast
from easysteer_data.vectors.estimators.principal import principal_axes


@dataclass(frozen=True)
class PairedPCA:
    """First principal axis of positive minus negative within the groups (Zou et al. 2023, RepE).

    The differences count with both signs: centred ones, as some tools take them, lose what all pairs share.
    """

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        positive, negative = contrast.rows.pairs(contrast.rows.x)
        if len(positive) == 0:
            raise RunError(
                "no group of the train split has rows of both classes, and paired_pca needs pairs; capture a "
                "corpus of pairs, or set corpus.group_column"
            )
        return contrast.step_along(principal_axes(positive - negative))
