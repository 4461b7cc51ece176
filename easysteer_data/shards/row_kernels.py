"""The inner loops of a shard's statistics, compiled by numba: one pass over rows, without the interpreter.

numba and not torch: operation by operation the same sums take five times as long, and numba comes with vLLM.
Not to be imported before it is needed: numba takes 0.4 s to load. Compiled loops are kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Sums over the values of one row may be taken in another order, to fill a vector register. What is not a
# number stays one.
_RULES = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}
_ABSOLUTE = np.uint32(0x7FFFFFFF)
_HALF_INFINITY = np.uint32(0x7C00)
_INFINITY = np.uint32(0x7F800000)
_HALF_SCALE = np.float32(2.0**112)  # between the exponents of half and single

Kernel = Callable[..., tuple[float, np.uint32]]


def _compiled(function: Kernel) -> Any:
    try:
        return njit(cache=True, **_RULES)(function)
    except RuntimeError:  # no folder to keep it in: compiled in each process
        return njit(**_RULES)(function)


@_compiled
def _add_row(
    single: NDArray[np.float32],
    bits: NDArray[np.uint32],
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """Add one row; `bits` are those of `single`. Returns its norm and the bits of its largest value.

    Without its sign a number is larger where its bits are, and what is not a number is larger than infinity.
    """
    largest = np.uint32(0)
    for i in range(len(bits)):
        largest = max(largest, np.uint32(bits[i] & _ABSOLUTE))
    square = 0.0
    for i in range(len(single)):
        value = np.float64(single[i])
        total[i] += value
        total_square[i] += value * value
        square += value * value
    return np.sqrt(square), largest


@_compiled
def sum_singles(
    rows: NDArray[np.float32],
    places: NDArray[np.int64],
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """Add float32 rows [n, width] at some places to the sums [width], in order.

    Returns:
        The sum of their norms, and the bits of the largest absolute value in float32.
    """
    total_norm, largest = 0.0, np.uint32(0)
    for place in places:
        row = rows[place]
        norm, peak = _add_row(row, row.view(np.uint32), total, total_square)
        total_norm += norm
        largest = max(largest, peak)
    return total_norm, largest


@_compiled
def sum_bfloats(
    rows: NDArray[np.uint16],
    places: NDArray[np.int64],
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """The same of the bits of bfloat16 rows."""
    total_norm, largest = 0.0, np.uint32(0)
    single = np.empty(rows.shape[1], np.float32)
    bits = single.view(np.uint32)
    for place in places:
        row = rows[place]
        for i in range(len(row)):
            bits[i] = np.uint32(row[i]) << 16
        norm, peak = _add_row(single, bits, total, total_square)
        total_norm += norm
        largest = max(largest, peak)
    return total_norm, largest


@_compiled
def sum_halves(
    rows: NDArray[np.uint16],
    places: NDArray[np.int64],
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """The same of the bits of float16 rows."""
    total_norm, largest = 0.0, np.uint32(0)
    single = np.empty(rows.shape[1], np.float32)
    bits = single.view(np.uint32)
    for place in places:
        row = rows[place]
        for i in range(len(row)):
            bits[i] = (np.uint32(row[i]) & np.uint32(0x7FFF)) << 13
        for i in range(len(row)):
            single[i] *= _HALF_SCALE
        for i in range(len(row)):
            half = np.uint32(row[i])
            if half & _HALF_INFINITY == _HALF_INFINITY:
                bits[i] |= _INFINITY
            bits[i] |= (half & np.uint32(0x8000)) << 16
        norm, peak = _add_row(single, bits, total, total_square)
        total_norm += norm
        largest = max(largest, peak)
    return total_norm, largest
