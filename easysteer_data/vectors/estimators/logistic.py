"""The normal of a logistic regression's boundary. Knows no run; plain torch, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from easysteer_data.errors import SettingsError
from easysteer_data.vectors.contrast import Contrast

_MAX_STEPS = 200  # a dozen do, but for weak penalties on classes that can be told apart entirely
_TOLERANCE = 1e-10  # of the gradient's largest element, per row


@dataclass(frozen=True)
class LogisticDirection:
    """Weights of an L2-regularised logistic regression on standardised rows, as a direction among rows.

    Attributes:
        C: inverse strength of the penalty, with scikit-learn's meaning.

    Raises:
        SettingsError: C is not above 0.
    """

    C: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.C < float("inf"):
            raise SettingsError(f"vector.C is {self.C}; use a number above 0")

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """See Estimator."""
        rows = contrast.rows
        mean = rows.x.mean(dim=0)
        std = (rows.x - mean).square().mean(dim=0).sqrt()
        std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
        weights = [
            self._weights((rows.x[:, layer] - mean[layer]) / std[layer], rows.positive.double())
            for layer in range(rows.x.shape[1])
        ]
        return contrast.step_along(torch.stack(weights) / std)

    def _weights(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Weights [width] of the regression on standardised rows [n, width] and their classes [n]."""
        if x.shape[0] >= x.shape[1]:
            return self._minimum(x, target)
        # The penalty keeps the weights within the span of the rows, which has few dimensions.
        basis = torch.linalg.qr(x.T).Q
        return torch.mv(basis, self._minimum(x @ basis, target))

    def _minimum(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The same by Newton's method, each step halved until the loss falls."""
        design = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        penalty = x.new_full((design.shape[1],), 1 / self.C)
        penalty[-1] = 0  # the bias is free

        def loss(parameters: torch.Tensor) -> torch.Tensor:
            errors = binary_cross_entropy_with_logits(design @ parameters, target, reduction="sum")
            return errors + (penalty * parameters.square()).sum() / 2

        parameters = torch.zeros_like(penalty)
        for _ in range(_MAX_STEPS):
            chances = torch.sigmoid(design @ parameters)
            gradient = design.T @ (chances - target) + penalty * parameters
            if gradient.abs().max() <= _TOLERANCE * len(x):
                break
            curvature = (chances * (1 - chances))[:, None] * design
            step = torch.linalg.solve(design.T @ curvature + penalty.diag(), gradient)
            before = loss(parameters)
            while loss(parameters - step) > before and step.abs().max() > _TOLERANCE:
                step = step / 2
            parameters = parameters - step
        return parameters[:-1]
