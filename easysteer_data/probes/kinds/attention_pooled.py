"""A probe of whole prompts: a learned query decides how much each token's row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from easysteer_data.errors import SettingsError
from easysteer_data.probes.readout import LayerwiseReadout, Shape
from easysteer_data.probes.standardise import with_layers
from easysteer_data.probes.trained import TrainedProbe
from easysteer_data.settings import ProbeSettings


class LayerwiseAttention(LayerwiseReadout):
    """Rows of a prompt pooled by softmax over its tokens, then read out linearly, for every layer.

    Attributes:
        query: [layers, width].
        weight: [layers, logits, width].
        bias: [layers, logits].
    """

    def __init__(self, shape: Shape, C: float) -> None:  # noqa: N803 - as elsewhere
        super().__init__(shape, C, torch.float32)
        # From zero: every token counts alike at first, and nothing is random.
        self.query = nn.Parameter(torch.zeros(shape.n_layers, shape.width))
        self.weight = nn.Parameter(torch.zeros(shape.n_layers, shape.n_logits, shape.width))
        self.bias = nn.Parameter(torch.zeros(shape.n_layers, shape.n_logits))

    def read(self, rows: torch.Tensor, example: torch.Tensor | None) -> torch.Tensor:
        """See LayerwiseReadout; without `example`, all rows are of one prompt."""
        example = torch.zeros(len(rows), dtype=torch.int64) if example is None else example
        shares = self._shares(rows, example)
        pooled = rows.new_zeros(int(example[-1]) + 1, *rows.shape[1:])
        pooled = pooled.index_add(0, example, rows * shares[:, :, None])
        return torch.einsum("nlw,lcw->nlc", pooled, self.weight) + self.bias

    def penalised(self) -> tuple[torch.Tensor, ...]:
        """See LayerwiseReadout."""
        return self.query[:, None], self.weight

    def shares(self, x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
        """How much each captured row counts in its prompt, [rows, layers]; 1 in sum over a prompt."""
        rows = (with_layers(x).to(self.mean.dtype) - self.mean) / self.std
        return self._shares(rows, example)

    def _shares(self, rows: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
        strength = torch.einsum("nlw,lw->nl", rows, self.query) / rows.shape[-1] ** 0.5
        place = example[:, None].expand_as(strength)
        n_examples = int(example[-1]) + 1
        # Softmax within each prompt; the largest is subtracted for the range of exp alone.
        largest = strength.detach().new_full((n_examples, rows.shape[1]), float("-inf"))
        largest = largest.scatter_reduce(0, place, strength.detach(), "amax")
        exponents = (strength - largest[example]).exp()
        total = strength.new_zeros(n_examples, rows.shape[1]).index_add(0, example, exponents)
        shares: torch.Tensor = exponents / total[example]
        return shares


class AttentionPooledProbe(TrainedProbe):
    """Logistic regression on a prompt's rows, weighted by what a learned query makes of them.

    Args:
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        width: elements of a row.
        label_names: the classes, in the order of their index.
        C: inverse strength of the L2 penalty on query and weights.
        lr: the learning rate to start from.

    Raises:
        SettingsError: fewer than two classes, or C or lr not above zero.
    """

    kind: ClassVar[str] = "attention_pooled"
    pools_prompts: ClassVar[bool] = True
    readout: LayerwiseAttention

    def __init__(
        self,
        layer_ids: Sequence[int],
        width: int,
        label_names: Sequence[str],
        C: float = 1.0,  # noqa: N803 - as elsewhere
        lr: float = 0.01,
    ) -> None:
        if not C > 0:
            raise SettingsError(f"probe.C must be above zero, found {C}")
        layer_ids, label_names = list(layer_ids), list(label_names)
        shape = Shape(len(layer_ids), width, len(label_names))
        super().__init__(LayerwiseAttention(shape, C), layer_ids, label_names, lr)
        self.save_hyperparameters()

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> AttentionPooledProbe:
        """See Probe."""
        return cls(**shape, C=settings.C, lr=0.01 if settings.lr is None else settings.lr)
