"""The minimum of an L2-regularised logistic regression: LBFGS that knows the curvature of a sample of rows.

Plain torch; knows no layer and no run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.probes.objective import Objective

MAX_STEPS = 1000

# How far the mean loss may lie above its minimum: where the search ends, and above which it has failed. The
# first is for the curvature of a sample, whose steps shrink evenly; that of all rows makes them Newton's.
_STOP_SAMPLE = 1e-8
_STOP_ALL = 1e-12
_FAILED = 1e-6

_CHECK_STEPS = {True: 2, False: 4}  # by whether all rows are the sample
_SHRINK = 30  # times that the gap must shrink between checks, or the curvature is taken again
_MEMORY = 12  # steps that LBFGS remembers
_SUFFICIENT = 1e-4  # share of the slope by which a step must lower the loss (Armijo)


@dataclass(frozen=True, slots=True)
class Minimum:
    """Where the loss is least.

    Attributes:
        weight: float64 [logits, width].
        bias: float64 [logits].
        loss: there, mean cross entropy plus penalty.
        gap: how far it lies above the minimum, as the curvature has it.
        n_passes: times that all rows were read.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    loss: float
    gap: float
    n_passes: int


def minimise(rows: torch.Tensor, target: torch.Tensor, n_logits: int, C: float) -> Minimum:  # noqa: N803
    """Minimise `mean cross entropy + ||w||^2 / (2 C n)`, the bias free, as scikit-learn does.

    Rows are multiplied in their own precision; parameters, sums and steps are in float64.

    Args:
        rows: float32 or float64 [n, width], on any device.
        target: int64 [n], classes.
        n_logits: 1 for two classes, else the number of classes.
        C: inverse strength of the penalty.

    Raises:
        SettingsError: no minimum is found.
    """
    n_rows, width = rows.shape
    if n_rows < width:
        # The penalty keeps the weights within the span of the rows, which has fewer dimensions.
        basis = torch.linalg.qr(rows.T.double()).Q
        found = minimise(rows.double() @ basis, target, n_logits, C)
        return Minimum(found.weight @ basis.T, found.bias, found.loss, found.gap, found.n_passes)
    search = Search(Objective(rows, target, n_logits, 1 / (C * n_rows)))
    search.run()
    if not search.gap <= _FAILED:
        raise SettingsError(
            f"no minimum found in {MAX_STEPS} steps of LBFGS (largest element of the gradient"
            f" {float(search.gradient.abs().max()):.1e}); use a lower C or solver='adam'"
        )
    weight, bias = search.parameters[:-1].T.contiguous(), search.parameters[-1]
    return Minimum(weight, bias, search.loss, search.gap, search.n_passes)


class Search:
    """LBFGS from zero on, in the metric of the objective's curvature.

    Attributes:
        parameters: where it stands.
        loss: there.
        gradient: there.
        gap: how far the loss can fall from there, as the curvature has it (half Newton's decrement).
        n_passes: times that all rows were read.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._stop = _STOP_ALL if objective.is_exact else _STOP_SAMPLE
        self._check_steps = _CHECK_STEPS[objective.is_exact]
        self._pairs: list[tuple[torch.Tensor, torch.Tensor, float]] = []
        self.n_passes = 0
        width = objective.rows.shape[1]
        self.parameters = objective.rows.new_zeros(width + 1, objective.n_logits, dtype=torch.float64)
        self.loss, self.gradient = self._evaluated(self.parameters)
        self.gap = float("inf")

    def run(self) -> None:
        """Go on until the gap is closed, or no step lowers the loss."""
        checked = 0.0
        for n_steps in range(MAX_STEPS):
            if n_steps % self._check_steps == 0:
                if self.gap > checked / _SHRINK:
                    self._factor = self._objective.curvature(self.parameters)
                checked = self.gap
            direction = -self._two_loops()
            slope = float((direction * self.gradient).sum())
            self.gap = -slope / 2
            if not self.gap > self._stop or not self._step(direction, slope):
                return

    def _evaluated(self, parameters: torch.Tensor) -> tuple[float, torch.Tensor]:
        self.n_passes += 1
        return self._objective(parameters)

    def _step(self, direction: torch.Tensor, slope: float) -> bool:
        """Take the step, halved until it lowers the loss enough; False if it never does."""
        # Losses that differ by less are the same but for rounding.
        noise = torch.finfo(self._objective.rows.dtype).eps * abs(self.loss)
        length = 1.0
        while length > 1e-6:
            trial = self.parameters + length * direction
            loss, gradient = self._evaluated(trial)
            if loss <= self.loss + _SUFFICIENT * length * slope + noise:
                self._remember(trial - self.parameters, gradient - self.gradient)
                self.parameters, self.loss, self.gradient = trial, loss, gradient
                return True
            length /= 2
        return False

    def _remember(self, step: torch.Tensor, change: torch.Tensor) -> None:
        curvature = float((step * change).sum())
        if curvature > 0:
            self._pairs = [*self._pairs[1 - _MEMORY :], (step, change, curvature)]

    def _two_loops(self) -> torch.Tensor:
        """The gradient times the inverse second derivative, as the steps so far show it."""
        result = self.gradient
        shares = []
        for step, change, curvature in reversed(self._pairs):
            share = (step * result).sum() / curvature
            shares.append(share)
            result = result - share * change
        result = torch.cholesky_solve(result, self._factor)
        for (step, change, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            result = result + (share - (change * result).sum() / curvature) * step
        return result
