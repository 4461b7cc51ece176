"""Copies rows of many layers from one place to another, in one call for all that lie evenly in memory.

A thread that came back from each layer, or from each run of rows, would wait for the interpreter each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_COMPILED_BYTES = 2**20  # less is copied by torch, which needs no compiled loop

Layers = Sequence[torch.Tensor] | torch.Tensor


def copy_rows(part: Layers, sources: np.ndarray, out: Layers, places: np.ndarray) -> None:
    """Set `out[places] = part[sources]` in each layer.

    Args:
        part: [n, width] a layer, in each of which a row's values lie together.
        sources: int64 [m], rows of it.
        out: [n_out, width] a layer, of its dtype.
        places: int64 [m], rows of it.
    """
    if not len(sources):
        return
    from_layers, to_layers = list(part), list(out)
    while from_layers:
        n = min(_n_even(from_layers), _n_even(to_layers))
        _copy(_stacked(from_layers[:n]), sources, _stacked(to_layers[:n]), places)
        del from_layers[:n], to_layers[:n]


def _copy(source: torch.Tensor, sources: np.ndarray, out: torch.Tensor, places: np.ndarray) -> None:
    """The same of layers [n_layers, n, width] that are one tensor."""
    _check(source, sources, out, places)
    n_layers, _, width = out.shape
    row_bytes = width * out.itemsize
    if n_layers * len(places) * row_bytes < _COMPILED_BYTES:
        out[:, torch.from_numpy(places)] = source[:, torch.from_numpy(sources)]
        return
    from easysteer_data.engine.copy_kernel import copy_bytes

    copy_bytes(
        source.data_ptr(),
        sources,
        (source.stride(0) * source.itemsize, source.stride(1) * source.itemsize),
        out.data_ptr(),
        places,
        (out.stride(0) * out.itemsize, out.stride(1) * out.itemsize),
        n_layers,
        row_bytes,
    )


def _check(source: torch.Tensor, sources: np.ndarray, out: torch.Tensor, places: np.ndarray) -> None:
    """Refuse what the compiled loop, which checks nothing, would copy out of somewhere else."""
    if source.dtype != out.dtype or source.shape[-1] != out.shape[-1] or len(sources) != len(places):
        raise ValueError(
            f"{len(sources)} rows of {source.dtype} {list(source.shape)} do not fit {len(places)} of "
            f"{out.dtype} {list(out.shape)}"
        )
    for rows, numbers in ((source, sources), (out, places)):
        if rows.device.type != "cpu" or rows.stride(-1) != 1:
            raise ValueError(
                f"rows must be in host memory, each in one piece: {rows.device}, {rows.stride()}"
            )
        if numbers.min() < 0 or numbers.max() >= rows.shape[1]:
            raise IndexError(
                f"rows must be in 0 to {rows.shape[1] - 1}, found {numbers.min()} to {numbers.max()}"
            )


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
