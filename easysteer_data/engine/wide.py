"""Moves rows in the widest elements there are: torch's kernels for gaps and indices move one at a time."""

from __future__ import annotations

import torch

_ELEMENTS = (torch.complex128, torch.int64, torch.int32, torch.int16)


def _wide(rows: torch.Tensor) -> torch.Tensor:
    """The same memory, [..., width], as fewer and wider elements; as it is where its places are odd ones."""
    n_bytes = rows.itemsize
    *strides, last = rows.stride()
    places = [rows.data_ptr(), n_bytes * rows.shape[-1], n_bytes * rows.storage_offset()]
    places += [n_bytes * stride for stride in strides]
    for dtype in _ELEMENTS:
        if last == 1 and dtype.itemsize > n_bytes and not any(place % dtype.itemsize for place in places):
            return rows.view(dtype)
    return rows


def pick_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """A copy of the rows [n_layers, n, width] at int64 [m] places of the second dimension."""
    return _wide(rows).index_select(1, index).view(rows.dtype)


def without_gaps(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., width] in one piece, copied unless they are."""
    return _wide(rows).contiguous().view(rows.dtype)
