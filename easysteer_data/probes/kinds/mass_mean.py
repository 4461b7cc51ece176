"""Mass-mean probe: the difference of the classes' means, seen through their covariance. Knows no run."""

from __future__ import annotations

from typing import ClassVar

import torch

from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.probes.kinds.lda import LDAProbe


class MassMeanProbe(LDAProbe):
    """The nearest class mean in the metric of the covariance within classes (Marks and Tegmark 2023).

    Two classes have the boundary half way between their means, however many rows each has.
    """

    kind: ClassVar[str] = "mass_mean"

    def log_priors(self, moments: CrossMoments) -> torch.Tensor:
        """See LDAProbe: no class is likelier than another."""
        return torch.zeros_like(moments.target_mean)
