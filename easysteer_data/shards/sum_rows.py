"""Sums of a layer's rows, in float64 and in a fixed order."""

# No `from __future__ import annotations` here: TorchScript reads the annotations.

import torch

from easysteer_data.shards.scripted import scripted

# Sum of the rows, and of their squares, float64 [width]; sum of their norms; largest absolute value.
RowSums = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

_BLOCK_VALUES = 2**17  # 1 MiB of float64: a block stays in the cache for all passes over it


@scripted
def _sums(rows: torch.Tensor, places: torch.Tensor, n_block: int) -> RowSums:
    width = rows.shape[1]
    captured = torch.empty([n_block, width], dtype=rows.dtype)
    singles = torch.empty([n_block, width], dtype=torch.float32)
    doubles = torch.empty([n_block, width], dtype=torch.float64)
    total = torch.zeros([width], dtype=torch.float64)
    total_square = torch.zeros([width], dtype=torch.float64)
    total_norm = torch.zeros([], dtype=torch.float64)
    max_abs = torch.zeros([], dtype=torch.float32)
    for start in range(0, places.shape[0], n_block):
        block = places[start : start + n_block]
        n = block.shape[0]
        torch.index_select(rows, 0, block, out=captured[:n])
        # Half to double directly is four times slower than by way of single.
        single = singles[:n].copy_(captured[:n])
        low, high = torch.aminmax(single)
        max_abs = torch.maximum(max_abs, torch.maximum(-low, high))  # a NaN stays one
        double = doubles[:n].copy_(single)
        total += double.sum(0)
        double.mul_(double)
        total_square += double.sum(0)
        total_norm += double.sum(1).sqrt_().sum()
    return total, total_square, total_norm, max_abs


def sum_rows(rows: torch.Tensor, places: torch.Tensor) -> RowSums:
    """Sum some rows.

    Args:
        rows: [n, width] of a capture type.
        places: int64 [m], which ones.
    """
    return _sums(rows, places, max(1, _BLOCK_VALUES // rows.shape[1]))
