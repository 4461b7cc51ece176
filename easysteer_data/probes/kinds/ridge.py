"""Ridge regression: of numbers, or of classes as numbers. Knows moments, no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.probes.kinds.closed_form import ClosedFormProbe
from easysteer_data.probes.layer_result import Task
from easysteer_data.settings import ProbeSettings


class RidgeProbe(ClosedFormProbe):
    """Least squares on standardised rows with an L2 penalty, as scikit-learn's Ridge and RidgeClassifier.

    A class is 1 for its own rows and -1 for the others; the largest wins. The chance of a class is what the
    regression has for it, (1 + score) / 2 within 0 and 1: the linear probability model.

    Args:
        layer_ids: decoder blocks.
        width: elements of a row.
        label_names: the classes; empty for numbers.
        alpha: weight of the squared norm beside the sum of squared errors.

    Raises:
        SettingsError: alpha is below zero.
    """

    kind: ClassVar[str] = "ridge"
    tasks: ClassVar[tuple[Task, ...]] = ("classes", "numeric")

    def __init__(
        self, layer_ids: Sequence[int], width: int, label_names: Sequence[str] = (), alpha: float = 1.0
    ) -> None:
        super().__init__(layer_ids, width, label_names)
        if not 0 <= alpha < float("inf"):
            raise SettingsError(f"probe.alpha is {alpha}; use 0 or more")
        self.alpha = alpha

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> RidgeProbe:
        """See Probe."""
        return cls(**shape, alpha=settings.alpha)

    @property
    def settings(self) -> dict[str, Any]:
        """See Probe."""
        return super().settings | {"alpha": self.alpha}

    def solve(self, moments: CrossMoments, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See ClosedFormProbe."""
        std = moments.std[layer]
        scatter = moments.scatter[layer] / std / std[:, None] + self.alpha * torch.eye(len(std)).double()
        factor, failed = torch.linalg.cholesky_ex(scatter)
        if failed:
            raise RunError("its rows lie in fewer dimensions than they are wide; use probe.alpha above 0")
        products = moments.target_scatter[layer] / std[:, None]
        weight, bias = torch.cholesky_solve(products, factor).T, moments.target_mean
        if self.label_names:
            weight, bias = 2 * weight, 2 * bias - 1
        return (weight[1:], bias[1:]) if self.shape.n_classes == 2 else (weight, bias)

    def score(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """See Probe; between -1 and 1, about."""
        scores = super().score(x, example)
        return (
            torch.cat([-scores[..., 1:], scores[..., 1:]], dim=-1) if len(self.label_names) == 2 else scores
        )

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """See Probe."""
        chances = ((1 + scores) / 2).clamp(1e-6, 1 - 1e-6)
        return chances / chances.sum(dim=-1, keepdim=True)
