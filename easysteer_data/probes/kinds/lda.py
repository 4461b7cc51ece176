"""Linear discriminant analysis: classes of one covariance and means of their own. Knows moments, no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.probes.kinds.closed_form import ClosedFormProbe
from easysteer_data.settings import ProbeSettings


class LDAProbe(ClosedFormProbe):
    """Log odds of Gaussian classes with a shared covariance, as scikit-learn's LinearDiscriminantAnalysis.

    A class is as likely beforehand as it is frequent in the train split.

    Args:
        layer_ids: decoder blocks.
        width: elements of a row.
        label_names: the classes.
        shrinkage: share of a multiple of the identity in the covariance of standardised rows, 0 to 1; None
            takes the share that suits the number of rows (OAS).

    Raises:
        SettingsError: the shrinkage is out of range.
    """

    kind: ClassVar[str] = "lda"

    def __init__(
        self,
        layer_ids: Sequence[int],
        width: int,
        label_names: Sequence[str] = (),
        shrinkage: float | None = None,
    ) -> None:
        super().__init__(layer_ids, width, label_names)
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise SettingsError(f"probe.shrinkage is {shrinkage}; use 0 to 1, or null for OAS")
        self.shrinkage = shrinkage

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> LDAProbe:
        """See Probe."""
        return cls(**shape, shrinkage=settings.shrinkage)

    @property
    def settings(self) -> dict[str, Any]:
        """See Probe."""
        return super().settings | {"shrinkage": self.shrinkage}

    def log_priors(self, moments: CrossMoments) -> torch.Tensor:
        """Log of how likely each class is beforehand, float64 [classes]."""
        return moments.target_mean.log()

    def solve(self, moments: CrossMoments, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See ClosedFormProbe."""
        std = moments.std[layer]
        covariance = moments.within(layer) / std / std[:, None]
        shrinkage = oas_shrinkage(covariance, moments.n_rows) if self.shrinkage is None else self.shrinkage
        factor, failed = torch.linalg.cholesky_ex(shrunk(covariance, shrinkage))
        if failed:
            raise RunError("its rows lie in fewer dimensions than they are wide; use probe.shrinkage above 0")
        means = moments.class_shifts()[layer] / std[:, None]
        weight = torch.cholesky_solve(means, factor)
        bias = self.log_priors(moments) - (means * weight).sum(dim=0) / 2
        if self.shape.n_classes == 2:
            weight, bias = weight[:, 1:] - weight[:, :1], bias[1:] - bias[:1]
        return weight.T, bias


def shrunk(covariance: torch.Tensor, shrinkage: float) -> torch.Tensor:
    """The covariance [width, width] with a share of the identity times its mean variance."""
    width = len(covariance)
    identity = torch.eye(width, dtype=covariance.dtype) * covariance.trace() / width
    return (1 - shrinkage) * covariance + shrinkage * identity


def oas_shrinkage(covariance: torch.Tensor, n_rows: int) -> float:
    """The share of the identity that oracle approximating shrinkage takes (Chen et al. 2010).

    In scikit-learn's form, which leaves out what is of the order of 1 / width. It needs no more than the
    covariance, so that one read of the rows is enough.
    """
    width = len(covariance)
    mean_square, square_mean = float(covariance.square().mean()), float(covariance.trace() / width) ** 2
    spread = (n_rows + 1) * (mean_square - square_mean / width)
    return 1.0 if spread <= 0 else min((mean_square + square_mean) / spread, 1.0)
