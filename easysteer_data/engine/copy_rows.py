"""Copies rows by index from one place to another: by runs where they are long, else row by row.

By numpy, which copies long runs as the C library does and lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch

# Rows that follow each other are copied as one; below this mean length, by index.
_MEAN_RUN = 8
_INTEGERS = {2: torch.int16, 4: torch.int32}


def copy_rows(
    part: Iterable[torch.Tensor], sources: np.ndarray, out: Iterable[torch.Tensor], places: np.ndarray
) -> None:
    """Set `out[places] = part[sources]` in each layer.

    Args:
        part: [n, ...] a layer, of two or four bytes a value; any strides.
        sources: int64 [m], rows of it.
        out: [n_out, ...] a layer, of its dtype.
        places: int64 [m], rows of it.
    """
    if not len(sources):
        return
    layers = [(_as_integers(source), _as_integers(target)) for source, target in zip(part, out, strict=True)]
    breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(places) != 1)) + 1
    if len(breaks) > len(sources) // _MEAN_RUN:
        chosen = _as_slice(sources)
        for from_rows, to_rows in layers:
            to_rows[places] = from_rows[chosen]
        return
    bounds = [0, *breaks.tolist(), len(sources)]
    runs = [(int(sources[i]), int(places[i]), stop - i) for i, stop in pairwise(bounds)]
    for from_rows, to_rows in layers:
        for first, place, n in runs:
            to_rows[place : place + n] = from_rows[first : first + n]


def _as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """A range of rows as a slice, which is a view; others as they are."""
    first = int(rows[0])
    return (
        slice(first, first + len(rows)) if np.array_equal(rows, np.arange(first, first + len(rows))) else rows
    )


def _as_integers(tensor: torch.Tensor) -> np.ndarray:
    """The same memory for numpy, which has no bfloat16."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize]).numpy()
