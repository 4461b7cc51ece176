"""Sums of a layer's rows, in float64 and in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


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
        rows: [n, width] of a capture type, contiguous.
        places: int64 [m], which ones.

    Raises:
        TypeError: the rows are of another type.
    """
    from easysteer_data.shards import row_kernels

    width = rows.shape[1]
    total, total_square = np.zeros(width), np.zeros(width)
    if rows.dtype == torch.float32:
        kernel, values = row_kernels.sum_singles, rows.numpy()
    elif rows.dtype == torch.bfloat16:
        kernel, values = row_kernels.sum_bfloats, rows.view(torch.uint16).numpy()
    elif rows.dtype == torch.float16:
        kernel, values = row_kernels.sum_halves, rows.view(torch.uint16).numpy()
    else:
        raise TypeError(f"rows are {rows.dtype}, not of a capture type")
    total_norm, largest = kernel(np.ascontiguousarray(values), places.numpy(), total, total_square)
    return RowSums(total, total_square, total_norm, float(np.uint32(largest).view(np.float32)))
