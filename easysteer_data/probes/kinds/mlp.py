"""A probe with one hidden layer: what is readable, though not linearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from easysteer_data.errors import SettingsError
from easysteer_data.probes.layer_result import Task
from easysteer_data.probes.readout import LayerwiseReadout, Shape
from easysteer_data.probes.trained import TrainedProbe
from easysteer_data.settings import ProbeSettings


class LayerwiseMLP(LayerwiseReadout):
    """One hidden layer of ReLUs for every layer of the model.

    Attributes:
        hidden_weight: [layers, hidden, width].
        hidden_bias: [layers, hidden].
        weight: [layers, logits, hidden].
        bias: [layers, logits].
    """

    def __init__(self, shape: Shape, C: float, hidden: int, seed: int) -> None:  # noqa: N803 - as elsewhere
        super().__init__(shape, C, torch.float32)
        generator = torch.Generator().manual_seed(seed)
        # He's (2015): the spread of a ReLU's input is kept. Every layer of the model starts alike.
        start = torch.randn(hidden, shape.width, generator=generator) * (2 / shape.width) ** 0.5
        end = torch.randn(shape.n_logits, hidden, generator=generator) * (1 / hidden) ** 0.5
        self.hidden_weight = nn.Parameter(start.repeat(shape.n_layers, 1, 1))
        self.hidden_bias = nn.Parameter(torch.zeros(shape.n_layers, hidden))
        self.weight = nn.Parameter(end.repeat(shape.n_layers, 1, 1))
        self.bias = nn.Parameter(torch.zeros(shape.n_layers, shape.n_logits))

    def read(self, rows: torch.Tensor, example: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        """See LayerwiseReadout; every row is an example."""
        hidden = (torch.einsum("nlw,lhw->nlh", rows, self.hidden_weight) + self.hidden_bias).relu()
        return torch.einsum("nlh,lch->nlc", hidden, self.weight) + self.bias

    def penalised(self) -> tuple[torch.Tensor, ...]:
        """See LayerwiseReadout."""
        return self.hidden_weight, self.weight


class MLPProbe(TrainedProbe):
    """One hidden layer, trained by Adam.

    Args:
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        width: elements of a row.
        label_names: the classes, in the order of their index; empty for numbers.
        C: inverse strength of the L2 penalty on the weights of both layers.
        hidden: hidden units.
        lr: the learning rate to start from.
        seed: of the weights to start from.

    Raises:
        SettingsError: one class, or C, hidden or lr not above zero.
    """

    kind: ClassVar[str] = "mlp"
    tasks: ClassVar[tuple[Task, ...]] = ("classes", "numeric")

    def __init__(
        self,
        layer_ids: Sequence[int],
        width: int,
        label_names: Sequence[str] = (),
        C: float = 1.0,  # noqa: N803 - as elsewhere
        hidden: int = 64,
        lr: float = 0.003,
        seed: int = 0,
    ) -> None:
        if not (C > 0 and hidden > 0):
            raise SettingsError(f"probe.C and probe.hidden must be above zero, found {C} and {hidden}")
        layer_ids, label_names = list(layer_ids), list(label_names)
        shape = Shape(len(layer_ids), width, len(label_names))
        super().__init__(LayerwiseMLP(shape, C, hidden, seed), layer_ids, label_names, lr)
        self.save_hyperparameters()

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> MLPProbe:
        """See Probe."""
        lr = 0.003 if settings.lr is None else settings.lr
        return cls(**shape, C=settings.C, hidden=settings.hidden, lr=lr, seed=settings.seed)
