"""Copies rows by index from one place to another: by runs where they are long, else row by row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

# Rows that follow each other are copied as one; below this mean length, by index.
_MEAN_RUN = 8
_INTEGERS = {2: torch.int16, 4: torch.int32}


def copy_rows(part: torch.Tensor, sources: np.ndarray, out: torch.Tensor, places: np.ndarray) -> None:
    """Set `out[:, places] = part[:, sources]`.

    Args:
        part: [n_layers, n, ...], of two or four bytes a value; any strides.
        sources: int64 [m], rows of it.
        out: [n_layers, n_out, ...] of its dtype.
        places: int64 [m], rows of it.
    """
    breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(places) != 1)) + 1
    if len(breaks) > len(sources) // _MEAN_RUN:
        for source_rows, rows in zip(_as_integers(part), _as_integers(out), strict=True):
            rows[places] = source_rows[sources]
        return
    for start, stop in pairwise([0, *breaks.tolist(), len(sources)]):
        if stop > start:
            source, place, n = int(sources[start]), int(places[start]), stop - start
            out[:, place : place + n] = part[:, source : source + n]


def _as_integers(tensor: torch.Tensor) -> np.ndarray:
    """The same memory for numpy, which has no bfloat16 and copies rows by index several times as fast."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize]).numpy()
