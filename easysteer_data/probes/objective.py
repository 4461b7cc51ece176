"""The loss of a logistic regression as a function of its parameters: value, gradient, about its curvature."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Rows of the sample: so many a parameter, as more cost more than the steps that they save; but at least some.
_SAMPLE_ROWS = 6
_LEAST_ROWS = 4096


@dataclass(frozen=True)
class Objective:
    """The loss as a function of parameters, float64 [width + 1, logits], the bias last.

    Attributes:
        rows: [n, width].
        target: int64 [n].
        n_logits: columns of the parameters.
        penalty: weight of half the squared norm.
    """

    rows: torch.Tensor
    target: torch.Tensor
    n_logits: int
    penalty: float

    @property
    def n_sample(self) -> int:
        """Rows whose curvature is taken."""
        return min(max(_SAMPLE_ROWS * self.rows.shape[1], _LEAST_ROWS), len(self.rows))

    @property
    def is_exact(self) -> bool:
        """Whether that is all rows."""
        return self.n_sample == len(self.rows)

    def __call__(self, parameters: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Loss, and gradient [width + 1, logits]; reads all rows once in each direction."""
        losses, residual = _errors(self._logits(self.rows, parameters), self.target)
        gradient = torch.empty_like(parameters)
        gradient[:-1] = _product(self.rows.T, residual).double() / len(self.rows)
        gradient[-1] = residual.sum(dim=0, dtype=torch.float64) / len(self.rows)
        gradient[:-1] += self.penalty * parameters[:-1]
        squares = float(parameters[:-1].square().sum())
        return float(losses.mean(dtype=torch.float64)) + self.penalty * squares / 2, gradient

    def curvature(self, parameters: torch.Tensor) -> torch.Tensor:
        """Cholesky factor of about the second derivative by one logit, float64 [width + 1, width + 1].

        Of a sample of the rows; with several logits, the mean of their own ones.
        """
        sample = self.rows[:: len(self.rows) // self.n_sample][: self.n_sample]
        chances = self._logits(sample, parameters)
        chances = chances.sigmoid() if self.n_logits == 1 else chances.softmax(dim=1)
        # Nowhere zero: rows that are certain at this step may not be so at the next.
        spread = (chances * (1 - chances)).mean(dim=1).clamp_(min=1e-5).sqrt()
        scaled = sample * spread[:, None]
        found = parameters.new_empty(len(parameters), len(parameters))
        found[:-1, :-1] = _gram(scaled)
        found[-1, :-1] = found[:-1, -1] = torch.mv(scaled.T, spread)
        found[-1, -1] = spread.square().sum(dtype=torch.float64)
        found /= self.n_sample
        diagonal = found.diagonal()
        diagonal += 1e-9 * diagonal.mean()  # elements that are constant in the sample have no curvature
        diagonal[:-1] += self.penalty
        factor: torch.Tensor = torch.linalg.cholesky_ex(found).L
        return factor

    def _logits(self, rows: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        return _product(rows, parameters[:-1].to(rows.dtype)) + parameters[-1].to(rows.dtype)


def _product(matrix: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    # With one column, a matrix product costs twice what the product with a vector does.
    return torch.mv(matrix, columns[:, 0])[:, None] if columns.shape[1] == 1 else torch.mm(matrix, columns)


def _gram(x: torch.Tensor) -> torch.Tensor:
    """x.T @ x; numpy knows that it is symmetric and does half the work."""
    if x.device.type != "cpu":
        return torch.mm(x.T, x)
    array = x.numpy()
    return torch.from_numpy(array.T @ array)


def _errors(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of each row [n, 1], and its derivative by the logits [n, logits]."""
    if logits.shape[1] == 1:
        one = target.to(logits.dtype)[:, None]
        return torch.nn.functional.softplus(logits) - one * logits, logits.sigmoid() - one
    chances = logits.log_softmax(dim=1)
    losses = -chances.gather(1, target[:, None])
    return losses, chances.exp().scatter_add_(1, target[:, None], -torch.ones_like(losses))
