"""Sums of a layer's rows, in float64 and in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

# Left of their bits where the same value's lie in float32; float16 needs more than a shift.
_SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 0}


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums of some rows.

    Attributes:
        total: float64 [width].
        total_square: of the squares, float64 [width].
        total_norm: of the Euclidean norms.
        max_abs: largest absolute value; NaN where there is one among the values.
    """

    total: NDArray[np.float64]
    total_square: NDArray[np.float64]
    total_norm: float
    max_abs: float


def sum_rows(rows: torch.Tensor, places: torch.Tensor) -> RowSums:
    """Sum some rows; other threads have the interpreter meanwhile.

    Args:
        rows: [n, width] of a capture type.
        places: int64 [m], which ones.

    Raises:
        TypeError: the rows are of another type.
    """
    from easysteer_data.shards import row_kernels

    if rows.dtype not in _SHIFTS:
        raise TypeError(f"rows are {rows.dtype}, not of a capture type")
    bits = rows.contiguous().view(torch.uint32 if rows.dtype == torch.float32 else torch.uint16).numpy()
    total, total_square = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    total_norm, largest = row_kernels.sum_bits(
        bits, places.numpy(), _SHIFTS[rows.dtype], rows.dtype == torch.float16, total, total_square
    )
    return RowSums(total, total_square, total_norm, float(np.uint32(largest).view(np.float32)))
