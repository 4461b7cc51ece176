"""The inner loop of copies of rows."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from easysteer_data.compiled import compiled

# The C library's, which does not read what it writes over. Addresses are numbers here.
_memmove = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))


@compiled
def copy_bytes(
    source: int,
    sources: NDArray[np.int64],
    source_steps: tuple[int, int],
    out: int,
    places: NDArray[np.int64],
    out_steps: tuple[int, int],
    n_layers: int,
    row_bytes: int,
) -> None:
    """Copy rows of layers between two stretches of memory.

    Args:
        source: address of the first row of the first layer.
        sources: numbers of the rows; nothing checks them.
        source_steps: bytes from a layer to the next, and from a row to the next.
        out: address of the other; they do not overlap.
        places: numbers of the rows there.
        out_steps: as of the source.
        n_layers: how many layers.
        row_bytes: bytes of a row.
    """
    together = source_steps[1] == row_bytes and out_steps[1] == row_bytes
    for layer in range(n_layers):
        first = 0
        for i in range(len(sources)):
            last = i + 1 == len(sources)
            if together and not last and sources[i + 1] == sources[i] + 1 and places[i + 1] == places[i] + 1:
                continue
            taken = source + layer * source_steps[0] + sources[first] * source_steps[1]
            put = out + layer * out_steps[0] + places[first] * out_steps[1]
            _memmove(put, taken, (i + 1 - first) * row_bytes)
            first = i + 1
