"""Copies rows of many layers from one place to another: by runs where they are long, else row by row.

By numpy, which lets other threads run meanwhile, and with one call for all layers that lie evenly in memory:
a thread that comes back from each layer would have to wait for the interpreter each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

# Rows that follow each other are copied as one where that is so many bytes, in all layers of a call; else by
# index. A range that rows are taken from is worth a call sooner: it saves a copy.
_RUN_BYTES, _RANGE_BYTES = 2**15, 2**13
_WORDS = (np.int64, np.int32, np.int16)
_INTEGERS = {2: torch.int16, 4: torch.int32}

Layers = Sequence[torch.Tensor] | torch.Tensor


def copy_rows(part: Layers, sources: np.ndarray, out: Layers, places: np.ndarray) -> None:
    """Set `out[places] = part[sources]` in each layer.

    Args:
        part: [n, width] a layer, of two or four bytes a value.
        sources: int64 [m], rows of it.
        out: [n_out, width] a layer, of its dtype.
        places: int64 [m], rows of it.
    """
    if not len(sources):
        return
    stacks = list(_stacks(part, out))
    n_bytes = sum(to_rows[:, 0].nbytes for _, to_rows in stacks) // len(stacks) * len(sources)
    in_both = _runs((np.diff(sources) != 1) | (np.diff(places) != 1), len(sources))
    if len(in_both) * _RUN_BYTES <= n_bytes:
        for from_rows, to_rows in stacks:
            for run in in_both:
                source, place, n = int(sources[run.start]), int(places[run.start]), run.stop - run.start
                to_rows[:, place : place + n] = from_rows[:, source : source + n]
        return
    # A range of the source is a view: it is copied once, not twice.
    in_source = _runs(np.diff(sources) != 1, len(sources))
    if len(in_source) * _RANGE_BYTES > n_bytes:
        in_source = [slice(0, len(sources))]
    for from_rows, to_rows in stacks:
        for run in in_source:
            to_rows[:, places[run]] = from_rows[:, _as_slice(sources[run])]


def _runs(breaks: np.ndarray, n: int) -> list[slice]:
    """Ranges between the breaks: bool [n - 1], whether one lies behind each place."""
    bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), n]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """A range of rows as a slice, which is a view; others as they are."""
    first = int(rows[0])
    return (
        slice(first, first + len(rows)) if np.array_equal(rows, np.arange(first, first + len(rows))) else rows
    )


def _stacks(part: Layers, out: Layers) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same memory as numpy arrays [layers, n, words], for the layers that lie evenly in both."""
    sources, targets = list(part), list(out)
    while sources:
        n = min(_n_even(sources), _n_even(targets))
        yield _as_words(_stacked(sources[:n])), _as_words(_stacked(targets[:n]))
        del sources[:n], targets[:n]


def _n_even(layers: Sequence[torch.Tensor]) -> int:
    """How many of the first layers lie in one memory, at even distances."""
    first, memory = layers[0], layers[0].untyped_storage().data_ptr()
    step = _step(layers)
    n = 1
    while n < len(layers) and step >= 0:
        if layers[n].untyped_storage().data_ptr() != memory:
            break
        if layers[n].storage_offset() != first.storage_offset() + n * step:
            break
        n += 1
    return n


def _step(layers: Sequence[torch.Tensor]) -> int:
    return int(layers[1].storage_offset() - layers[0].storage_offset()) if len(layers) > 1 else 0


def _stacked(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Evenly spaced layers as one tensor, a view."""
    first = layers[0]
    return first.as_strided((len(layers), *first.shape), (_step(layers), *first.stride()))


def _as_words(rows: torch.Tensor) -> np.ndarray:
    """The same memory in the largest integers that divide a row."""
    values: np.ndarray = rows.view(_INTEGERS[rows.dtype.itemsize]).numpy()
    n_bytes = values.shape[-1] * values.itemsize
    return values.view(next(word for word in _WORDS if not n_bytes % np.dtype(word).itemsize))
