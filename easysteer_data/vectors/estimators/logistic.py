"""The normal of a logistic regression's boundary. Knows no run; plain torch, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from easysteer_data.errors import SettingsError
from easysteer_data.vectors.contrast import Contrast

_MAX_STEPS = 2000
_TOLERANCE = 1e-9  # of the largest element of the gradient


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
        parameters = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS(
            [parameters],
            max_iter=_MAX_STEPS,
            max_eval=2 * _MAX_STEPS,
            tolerance_grad=_TOLERANCE,
            tolerance_change=0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def loss() -> torch.Tensor:
            solver.zero_grad()
            weights, bias = parameters[:-1], parameters[-1]
            penalty = weights.square().sum() / (2 * self.C * len(x))
            value = binary_cross_entropy_with_logits(x @ weights + bias, target) + penalty
            value.backward()  # type: ignore[no-untyped-call]
            return value

        solver.step(loss)
        return parameters.detach()[:-1]
