"""Rows as they rest in files: converted to the storage type, read back, and what that loses, measured.

Knows blocks of rows and their scales; knows no shard and no file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from easysteer_data.shards.dtypes import SCALED_PEAKS
from easysteer_data.shards.storage_loops import encode_rows, storage_errors

_BLOCK_VALUES = 2**16  # 256 KiB of float32: a block stays in the cache for all passes over it
_MAX_PEAK = torch.finfo(torch.float32).max * (1 - 2**-22)  # a scale rounded up must not overflow when read
_MIN_SCALE = torch.finfo(torch.float32).tiny  # a smaller one is subnormal, too coarse to divide by


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows in the storage type.

    Attributes:
        rows: [n, width].
        scale: float32 [n], what a row's elements are multiplied by; None for types without scales.
    """

    rows: torch.Tensor
    scale: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StorageError:
    """How far n stored rows s of one layer are from the rows x as captured.

    Attributes:
        n_rows: how many rows.
        sum_square: sum of |x|^2 over the rows.
        relative_error: sqrt(sum |x - s|^2 / sum |x|^2); 0 exactly where they are equal.
        mean_cosine: mean over the rows of the cosine between x and s: 1 exactly where they are equal, 0 where
            only s is zero.
        min_cosine: the smallest of these cosines; 1 where there is no row.
    """

    n_rows: int
    sum_square: float
    relative_error: float = 0.0
    mean_cosine: float = 1.0
    min_cosine: float = 1.0

    def merged(self, other: StorageError) -> StorageError:
        """The error of both sets of rows together."""
        n_rows, sum_square = self.n_rows + other.n_rows, self.sum_square + other.sum_square
        sum_error = sum(part.relative_error**2 * part.sum_square for part in (self, other))
        sum_cosine = sum(part.mean_cosine * part.n_rows for part in (self, other))
        return StorageError(
            n_rows,
            sum_square,
            math.sqrt(sum_error / sum_square) if sum_square else 0.0,
            sum_cosine / n_rows if n_rows else 1.0,
            min(self.min_cosine, other.min_cosine),
        )


class StorageMeter:
    """Measures the error of storage, in float64 sums of a fixed order; blocks of rows in, one figure out."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._sum_square = self._sum_error = self._sum_cosine = 0.0
        self._min_cosine = 1.0

    def add(self, captured: torch.Tensor, stored: StoredRows) -> None:
        """Take rows [n, width] in, as captured and as stored."""
        if len(captured) == 0:
            return
        square, error, cosine, min_cosine = storage_errors(
            captured, stored.rows, stored.scale, _n_block(captured.shape[1])
        )
        self._n_rows += len(captured)
        self._sum_square += float(square)
        self._sum_error += float(error)
        self._sum_cosine += float(cosine)
        self._min_cosine = min(self._min_cosine, float(min_cosine))

    def error(self) -> StorageError:
        """The error of all rows so far."""
        return StorageError(
            self._n_rows,
            self._sum_square,
            math.sqrt(self._sum_error / self._sum_square) if self._sum_square else 0.0,
            self._sum_cosine / self._n_rows if self._n_rows else 1.0,
            self._min_cosine,
        )


def encode(rows: torch.Tensor, dtype: torch.dtype, meter: StorageMeter | None = None) -> StoredRows:
    """Convert captured rows [n, width] to a storage type, block by block.

    Without scales: rounded to the nearest, ties to even. With scales, symmetric: a row's scale is its largest
    absolute value / 448 (float8_e4m3) or / 127 (int8), 1 for a row of zeros, and its elements are divided by
    the scale in float32 and rounded likewise.

    Args:
        rows: finite values of a capture type that do not overflow the storage type.
        dtype: one of STORAGE_DTYPES.
        meter: measures the error of these rows; None where there is none to measure.

    Returns:
        The rows themselves where they are of that type already, otherwise a copy.
    """
    if rows.dtype == dtype and meter is None:
        return StoredRows(rows)
    if dtype in SCALED_PEAKS:
        peak, into, scale = SCALED_PEAKS[dtype], torch.empty(rows.shape, dtype=dtype), torch.empty(len(rows))
        encode_rows(rows, into, scale, peak, _MIN_SCALE, _MAX_PEAK / peak, _n_block(rows.shape[1]))
        stored = StoredRows(into, scale)
    else:
        stored = StoredRows(rows.to(dtype))
    if meter is not None:
        meter.add(rows, stored)
    return stored


def decode(stored: StoredRows) -> torch.Tensor:
    """Rows as floats: float32 [n, width], multiplied by their scales; those without scales as they are."""
    if stored.scale is None:
        return stored.rows
    if stored.rows.dtype == torch.float8_e4m3fn:
        return _half_of_float8(stored.rows).float().mul_((stored.scale * 256)[:, None])
    return stored.rows.float().mul_(stored.scale[:, None])


def _half_of_float8(rows: torch.Tensor) -> torch.Tensor:
    """float8_e4m3 values / 256 as float16, exactly; three times faster than torch's own conversion.

    Both types are sign, exponent, fraction: shifted by 7 bits the fields meet, and the exponents' biases, 7
    and 15, differ by a factor of 256. NaN, which is never stored, would become a number.
    """
    bits = rows.view(torch.int8).to(torch.int16)  # extends the sign into bit 14 too after the shift
    return bits.bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)


def _n_block(width: int) -> int:
    return max(1, _BLOCK_VALUES // width)
