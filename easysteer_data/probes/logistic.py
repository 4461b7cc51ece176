"""Logistic regressions side by side, one a layer: parameters, logits and the loss that training minimises.

Plain torch: knows neither Lightning nor where rows come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from easysteer_data.errors import SettingsError
from easysteer_data.probes.standardise import Moments, with_layers


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a probe: layers, elements of a row, classes."""

    n_layers: int
    width: int
    n_classes: int

    @property
    def n_logits(self) -> int:
        """Two classes have one logit, that of class 1; more have one each."""
        return 1 if self.n_classes == 2 else self.n_classes


class LayerwiseLogistic(nn.Module):
    """L2-regularised logistic regression on standardised rows, an independent one for every layer.

    The loss of a layer is `mean cross entropy + ||w||^2 / (2 C n)`, n being the rows of the train
    split; the bias is not penalised. It has the minimum of scikit-learn's LogisticRegression(C) on the
    same standardised rows.

    Attributes:
        weights: one [logits, width] a layer.
        biases: one [logits] a layer.
        mean: [layers, width], subtracted from a row.
        std: [layers, width], what the difference is divided by.
        n_train: int64 scalar, rows that mean and std were taken from; 0 before `standardise`.

    Args:
        shape: layers, width, classes.
        C: inverse strength of the penalty, with scikit-learn's meaning.
        dtype: element type of parameters and of all arithmetic.
    """

    mean: torch.Tensor
    std: torch.Tensor
    n_train: torch.Tensor

    def __init__(self, shape: Shape, C: float, dtype: torch.dtype) -> None:  # noqa: N803 - scikit-learn's name
        super().__init__()
        self.C = C
        # Parameters of their own, so that every layer can have an optimiser of its own.
        self.weights = nn.ParameterList(
            torch.zeros(shape.n_logits, shape.width, dtype=dtype) for _ in range(shape.n_layers)
        )
        self.biases = nn.ParameterList(
            torch.zeros(shape.n_logits, dtype=dtype) for _ in range(shape.n_layers)
        )
        self.register_buffer("mean", torch.zeros(shape.n_layers, shape.width, dtype=dtype))
        self.register_buffer("std", torch.ones(shape.n_layers, shape.width, dtype=dtype))
        self.register_buffer("n_train", torch.zeros((), dtype=torch.int64))

    def standardise(self, moments: Moments) -> None:
        """Take over count, mean and spread of the train split.

        Raises:
            SettingsError: they are of other layers or another width.
        """
        if moments.mean.shape != self.mean.shape:
            found, expected = list(moments.mean.shape), list(self.mean.shape)
            raise SettingsError(
                f"the moments are of [layers, width] = {found}, the probe's rows of {expected}"
            )
        self.mean.copy_(moments.mean)
        self.std.copy_(moments.std)
        self.n_train.fill_(moments.n_rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [rows, layers, logits] of captured rows, [rows, layers, width] or [rows, width]."""
        rows = (with_layers(x).to(self.mean.dtype) - self.mean) / self.std
        weights, biases = torch.stack(list(self.weights)), torch.stack(list(self.biases))
        return torch.einsum("nlw,lcw->nlc", rows, weights) + biases

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Loss of every layer, [layers], on captured rows and their classes, int64 [rows]."""
        squares = torch.stack([weight.square().sum() for weight in self.weights])
        return cross_entropies(self(x), target) + self._penalty(squares)

    def layer_rows(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Standardised rows of one layer, [rows, width]."""
        rows = with_layers(x)[:, layer].to(self.mean.dtype)
        return (rows - self.mean[layer]) / self.std[layer]

    def layer_loss(self, rows: torch.Tensor, layer: int, target: torch.Tensor) -> torch.Tensor:
        """Loss of one layer, a scalar, on what `layer_rows` gave."""
        logits = nn.functional.linear(rows, self.weights[layer], self.biases[layer])
        return cross_entropies(logits, target) + self._penalty(self.weights[layer].square().sum())

    def _penalty(self, squares: torch.Tensor) -> torch.Tensor:
        return squares / (2 * self.C * self.n_train)


def cross_entropies(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over rows, [...], of logits [rows, ..., logits] and classes int64 [rows]."""
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    index = target.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1).mean(dim=0)
