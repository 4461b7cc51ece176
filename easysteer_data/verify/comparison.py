"""How far rows are from Hugging Face's, row by row. Arithmetic on tensors: knows no run, model or bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# A row is taken for a neighbouring layer's only if that one is nearer by this factor: where a block changes
# the stream by less than the rounding of bfloat16, both are as near.
_CLEARLY_NEARER = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """n rows of L layers against Hugging Face's.

    Attributes:
        cosine: float64 [n, L], cosine between a row and its expected one.
        relative: float64 [n, L], largest difference in units of the expected row's largest element.
        shift: int64 [n, L], 0, or -1 / +1 where the row is clearly nearer to the layer before / after.
    """

    cosine: torch.Tensor
    relative: torch.Tensor
    shift: torch.Tensor


def compare(rows: torch.Tensor, layer_ids: Sequence[int], states: Sequence[torch.Tensor]) -> Comparison:
    """Compare rows with each layer's output, and with its neighbours'.

    Args:
        rows: [n, L, width] in any dtype.
        layer_ids: the L layers.
        states: float32 [n, width] each: the embeddings, then every block's output.
    """
    columns = [_compare_layer(rows[:, i], layer_id, states) for i, layer_id in enumerate(layer_ids)]
    cosine, relative, shift = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    return Comparison(cosine, relative, shift)


def concatenate(parts: Sequence[Comparison]) -> Comparison:
    """The comparisons of several prompts as one, in their order."""
    return Comparison(
        torch.cat([part.cosine for part in parts]),
        torch.cat([part.relative for part in parts]),
        torch.cat([part.shift for part in parts]),
    )


def _compare_layer(
    rows: torch.Tensor, layer_id: int, states: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # In float64, where the rounding of the comparison itself can't be seen.
    rows = rows.double()
    before, expected = states[layer_id].double(), states[layer_id + 1].double()
    cosine = torch.nn.functional.cosine_similarity(rows, expected, dim=-1)
    relative = (rows - expected).abs().amax(-1) / expected.abs().amax(-1)

    limit = _CLEARLY_NEARER * _distance(rows, expected)
    shift = torch.zeros(len(rows), dtype=torch.int64)
    if layer_id + 2 < len(states):
        shift[_distance(rows, states[layer_id + 2].double()) < limit] = 1
    shift[_distance(rows, before) < limit] = -1
    return cosine, relative, shift


def _distance(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (rows - others).square().sum(dim=-1).sqrt()
