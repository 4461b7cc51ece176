"""Logistic regressions side by side, one a layer. Plain torch: knows neither Lightning nor a run."""

from __future__ import annotations

import torch
from torch import nn

from easysteer_data.errors import SettingsError
from easysteer_data.probes.minimise import minimise
from easysteer_data.probes.readout import LayerwiseReadout, Shape
from easysteer_data.probes.standardise import with_layers


class LayerwiseLogistic(LayerwiseReadout):
    """L2-regularised logistic regression on standardised rows, an independent one for every layer.

    It has the minimum of scikit-learn's LogisticRegression(C) on the same standardised rows.

    Attributes:
        weight: [layers, logits, width].
        bias: [layers, logits], not penalised.
    """

    def __init__(self, shape: Shape, C: float, dtype: torch.dtype) -> None:  # noqa: N803 - scikit-learn's name
        super().__init__(shape, C, dtype)
        self.weight = nn.Parameter(torch.zeros(shape.n_layers, shape.n_logits, shape.width, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(shape.n_layers, shape.n_logits, dtype=dtype))

    def read(self, rows: torch.Tensor, example: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        """See LayerwiseReadout; every row is an example."""
        return torch.einsum("nlw,lcw->nlc", rows, self.weight) + self.bias

    def penalised(self) -> tuple[torch.Tensor, ...]:
        """See LayerwiseReadout."""
        return (self.weight,)

    @torch.no_grad()
    def minimise(self, x: torch.Tensor, target: torch.Tensor, layer_ids: tuple[int, ...]) -> torch.Tensor:
        """Set every layer to its minimum on all rows of the train split; its losses, float64 [layers].

        Layer after layer, so that the standardised rows of only one are held.

        Args:
            x: captured rows, [rows, layers, width] or [rows, width].
            target: int64 [rows], their classes.
            layer_ids: names of the layers, for errors.

        Raises:
            SettingsError: a layer has no minimum that can be found; names it.
        """
        losses = []
        for layer, layer_id in enumerate(layer_ids):
            rows = self._layer_rows(with_layers(x)[:, layer], layer)
            try:
                found = minimise(rows, target, self.shape.n_logits, self.C)
            except SettingsError as error:
                raise SettingsError(f"layer {layer_id}: {error}") from error
            self.weight[layer] = found.weight
            self.bias[layer] = found.bias
            losses.append(found.loss)
        return torch.tensor(losses, dtype=torch.float64)

    def _layer_rows(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Rows of one layer [rows, width], standardised in the parameters' precision, kept in their own."""
        kept = torch.float64 if x.dtype == torch.float64 else torch.float32
        rows = torch.empty(x.shape, dtype=kept)
        mean, inverse = self.mean[layer], 1 / self.std[layer]
        for block, out in zip(torch.split(x, 256), torch.split(rows, 256), strict=True):
            out.copy_(block.to(mean.dtype, copy=True).sub_(mean).mul_(inverse))
        return rows
