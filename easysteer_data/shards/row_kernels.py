"""The inner loops of a shard's statistics: one pass over rows, three times as fast as torch's operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from easysteer_data.compiled import compiled

_BLOCK = 64  # rows that are summed by themselves first: the sums of very many rows stay as exact
_LANES = 64  # of a row's squares
_ABSOLUTE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_HALF_ABSOLUTE, _HALF_INFINITY, _HALF_SIGN = np.uint32(0x7FFF), np.uint32(0x7C00), np.uint32(0x8000)
_HALF_SCALE = np.float32(2.0**112)  # between the exponents of half and single

Bits = NDArray[np.uint16] | NDArray[np.uint32]


@compiled
def _widen_halves(row: Bits, single: NDArray[np.float32], bits: NDArray[np.uint32]) -> None:
    """Bits of float16 as float32; `bits` are those of `single`. One loop for all would not be vectorised."""
    for i in range(len(row)):
        bits[i] = (np.uint32(row[i]) & _HALF_ABSOLUTE) << 13
    for i in range(len(row)):
        single[i] *= _HALF_SCALE
    for i in range(len(row)):
        half = np.uint32(row[i])
        if half & _HALF_INFINITY == _HALF_INFINITY:
            bits[i] |= _INFINITY
        bits[i] |= (half & _HALF_SIGN) << 16


@compiled
def _add_row(
    single: NDArray[np.float32],
    bits: NDArray[np.uint32],
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
    lanes: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """Add one row. Returns its norm and the bits of its largest value; `lanes` [_LANES] is room to work in.

    Without its sign a number is larger where its bits are, and what is not a number is larger than infinity.
    """
    width = len(single)
    largest = np.uint32(0)
    for i in range(width):
        largest = max(largest, np.uint32(bits[i] & _ABSOLUTE))
    n_lanes = min(_LANES, width)
    lanes[:n_lanes] = 0.0
    whole = width - width % _LANES
    for start in range(0, whole, _LANES):  # squares are summed side by side, and loops of one length unrolled
        singles = single[start : start + _LANES]
        totals, total_squares = total[start : start + _LANES], total_square[start : start + _LANES]
        for i in range(_LANES):
            value = np.float64(singles[i])
            square = value * value
            totals[i] += value
            total_squares[i] += square
            lanes[i] += square
    for i in range(whole, width):
        value = np.float64(single[i])
        square = value * value
        total[i] += value
        total_square[i] += square
        lanes[i - whole] += square
    norm_square = 0.0
    for i in range(n_lanes):
        norm_square += lanes[i]
    return np.sqrt(norm_square), largest


@compiled
def sum_bits(
    rows: Bits,
    places: NDArray[np.int64],
    shift: int,
    is_half: bool,
    total: NDArray[np.float64],
    total_square: NDArray[np.float64],
) -> tuple[float, np.uint32]:
    """Add rows at some places to the sums [width], in order.

    Args:
        rows: [n, width], the bits of float32, bfloat16 or float16 values.
        places: which rows.
        shift: how far left of theirs the bits of a float32 lie: 16 for bfloat16.
        is_half: whether the values are float16, which no shift makes float32.
        total: the sums of the rows.
        total_square: the sums of their squares.

    Returns:
        The sum of the rows' norms, and the bits of the largest absolute value in float32.
    """
    width = rows.shape[1]
    single = np.empty(width, np.float32)
    bits = single.view(np.uint32)
    part, part_square, lanes = np.empty(width), np.empty(width), np.empty(_LANES)
    total_norm, largest = 0.0, np.uint32(0)
    for start in range(0, len(places), _BLOCK):
        part[:] = 0.0
        part_square[:] = 0.0
        for place in places[start : start + _BLOCK]:
            row = rows[place]
            if is_half:
                _widen_halves(row, single, bits)
            else:
                for i in range(width):
                    bits[i] = np.uint32(row[i]) << shift
            norm, peak = _add_row(single, bits, part, part_square, lanes)
            total_norm += norm
            largest = max(largest, peak)
        for i in range(width):
            total[i] += part[i]
            total_square[i] += part_square[i]
    return total_norm, largest
