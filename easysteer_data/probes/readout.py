"""Read-outs side by side, one a layer, that training fits: what they share. Plain torch, no run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from easysteer_data.errors import SettingsError
from easysteer_data.probes.standardise import Moments, with_layers


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a probe: layers, elements of a row, classes; no classes for numeric labels."""

    n_layers: int
    width: int
    n_classes: int

    @property
    def n_logits(self) -> int:
        """Two classes have one logit, that of class 1; more have one each; a number is one."""
        return self.n_classes if self.n_classes > 2 else 1


class LayerwiseReadout(nn.Module, ABC):
    """A function of standardised rows for every layer, each independent of the others.

    The loss of a layer is `mean error + ||w||^2 / (2 C n)`, n being the examples of the train split, w all
    that `penalised` names. The error is the cross entropy, or for numbers half the squared
    difference of standardised ones. The first axis of every parameter is that of the layers.

    Attributes:
        mean: [layers, width], subtracted from a row.
        std: [layers, width], what the difference is divided by.
        n_train: int64 scalar, examples of the train split; 0 before `standardise`.
        target_mean: scalar, added to a number that is read out; 0 for classes.
        target_std: scalar, what it is multiplied by before; 1 for classes.

    Args:
        shape: layers, width, classes.
        C: inverse strength of the penalty, with scikit-learn's meaning.
        dtype: element type of parameters and of all arithmetic.
    """

    mean: torch.Tensor
    std: torch.Tensor
    n_train: torch.Tensor
    target_mean: torch.Tensor
    target_std: torch.Tensor

    def __init__(self, shape: Shape, C: float, dtype: torch.dtype) -> None:  # noqa: N803 - scikit-learn's name
        super().__init__()
        self.shape = shape
        self.C = C
        self.register_buffer("mean", torch.zeros(shape.n_layers, shape.width, dtype=dtype))
        self.register_buffer("std", torch.ones(shape.n_layers, shape.width, dtype=dtype))
        self.register_buffer("n_train", torch.zeros((), dtype=torch.int64))
        self.register_buffer("target_mean", torch.zeros((), dtype=dtype))
        self.register_buffer("target_std", torch.ones((), dtype=dtype))

    @abstractmethod
    def read(self, rows: torch.Tensor, example: torch.Tensor | None) -> torch.Tensor:
        """Logits [examples, layers, logits] of standardised rows [rows, layers, width].

        `example` int64 [rows] is the example that each row is of; None where each is one.
        """

    @abstractmethod
    def penalised(self) -> tuple[torch.Tensor, ...]:
        """Parameters that the penalty keeps small."""

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

    def standardise_targets(self, targets: torch.Tensor) -> None:
        """Take over mean and spread of the train split's numbers [n]."""
        self.target_mean.copy_(targets.double().mean())
        self.target_std.copy_(targets.double().std(correction=0).clamp(min=torch.finfo(torch.float32).tiny))

    def forward(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [examples, layers, logits] of captured rows, [rows, layers, width] or [rows, width]."""
        return self.read((with_layers(x).to(self.mean.dtype) - self.mean) / self.std, example)

    def numbers(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """Predicted numbers [examples, layers, 1], where labels are numeric."""
        numbers: torch.Tensor = self(x, example) * self.target_std + self.target_mean
        return numbers

    def errors(
        self, x: torch.Tensor, target: torch.Tensor, example: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mean error of every layer, [layers], without the penalty."""
        logits = self(x, example)
        if self.shape.n_classes:
            return cross_entropies(logits, target)
        wanted = (target.to(logits.dtype) - self.target_mean) / self.target_std
        errors: torch.Tensor = (logits[..., 0] - wanted[:, None]).square().mean(dim=0) / 2
        return errors

    def losses(
        self, x: torch.Tensor, target: torch.Tensor, example: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Loss of every layer, [layers], on captured rows and the labels [examples] of their examples."""
        squares = torch.stack([weight.square().flatten(1).sum(dim=1) for weight in self.penalised()]).sum(
            dim=0
        )
        return self.errors(x, target, example) + squares / (2 * self.C * self.n_train)


def cross_entropies(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over rows, [...], of logits [rows, ..., logits] and classes int64 [rows]."""
    logits = with_reference(logits)
    index = target.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1).mean(dim=0)


def with_reference(logits: torch.Tensor) -> torch.Tensor:
    """One logit a class, [..., classes]: beside the only one of two classes, a 0 for class 0."""
    if logits.shape[-1] == 1:
        return torch.cat([torch.zeros_like(logits), logits], dim=-1)
    return logits
