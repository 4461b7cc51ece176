"""Rows of a range of prompts at their final places, copied there as they arrive and not when all are there.

For captures in which the host knows beforehand how many rows each prompt can give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np
import torch

from easysteer_data.engine.copy_rows import copy_rows
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.wire import DTYPES, Chunk, StreamShape
from easysteer_data.types import Stream

_COPY_BYTES = 2**23  # of rows that are copied at once: enough to be worth a thread, few enough to share out


class RowStore:
    """Room for the rows of consecutive prompts, in order of (prompt, position).

    Args:
        first: index of the first prompt.
        max_rows: most rows of each prompt.
        shapes: stream -> what is captured of it.
        copiers: runs the copies.
        memory: where the rows' memory comes from.
    """

    def __init__(
        self,
        first: int,
        max_rows: Sequence[int],
        shapes: Mapping[Stream, StreamShape],
        copiers: Executor,
        memory: HostMemory,
    ) -> None:
        self._first = first
        self._copiers = copiers
        self._max_rows = np.array(max_rows, dtype=np.int64)
        self._starts = np.cumsum(self._max_rows) - self._max_rows
        self._n_rows = np.zeros(len(max_rows), dtype=np.int64)
        total = int(self._max_rows.sum())
        self._labels = np.zeros((3, total), dtype=np.int32)
        self._peaks = {s: torch.empty(len(shape.layer_ids), total) for s, shape in shapes.items()}
        self._values: dict[Stream, torch.Tensor] = {}
        self._shapes = shapes
        self._memory = memory
        self._whole: Chunk | None = None
        self._copies: list[Future[None]] = []

    def has_all_but(self, n_missing: Sequence[int]) -> bool:
        """Whether all rows of each prompt have come but so many of the most that it can give."""
        return bool((self._n_rows + n_missing >= self._max_rows).all())

    def add(self, chunk: Chunk, rows: np.ndarray) -> None:
        """Take rows of these prompts.

        Args:
            chunk: in which a prompt's rows stand in order, not always together.
            rows: int64 [n > 0], ascending, those of these prompts.
        """
        if not self._n_rows.any() and self._is_all(chunk, rows):
            self._whole = _narrowed(chunk, int(rows[0]), len(rows))
            self._n_rows = self._max_rows.copy()
            return
        self._make_room()
        owner = chunk.prompt.numpy()[rows].astype(np.int64) - self._first
        rank = _rank_in_each(owner) + self._n_rows[owner]
        # The engine may run a step past a prompt's end: nothing expects that row.
        kept = rank < self._max_rows[owner]
        self._n_rows += np.bincount(owner, minlength=len(self._n_rows))
        rows, places = rows[kept], (self._starts[owner] + rank)[kept]
        for labels, given in zip(self._labels, (chunk.prompt, chunk.position, chunk.token_id), strict=True):
            labels[places] = given.numpy()[rows]
        for stream, values in self._values.items():
            self._peaks[stream].numpy()[:, places] = chunk.peaks[stream].numpy()[:, rows]
            for layers, part in _pieces(values, len(rows)):
                self._copies.append(
                    self._copiers.submit(
                        _copy, chunk, stream, layers, rows[part], values[layers], places[part]
                    )
                )

    def _is_all(self, chunk: Chunk, rows: np.ndarray) -> bool:
        """Whether these rows are all that can come, side by side and in order: then they need no copy."""
        first, n = int(rows[0]), len(rows)
        if n != self._max_rows.sum() or int(rows[-1]) - first != n - 1:
            return False
        expected = np.repeat(np.arange(len(self._max_rows)) + self._first, self._max_rows)
        return np.array_equal(chunk.prompt.numpy()[first : first + n], expected)

    def _make_room(self) -> None:
        if not self._values:
            self._values = {
                stream: self._memory.empty(
                    (len(shape.layer_ids), int(self._max_rows.sum()), shape.width), DTYPES[shape.dtype]
                )
                for stream, shape in self._shapes.items()
            }

    def finish(self) -> Chunk:
        """Return all rows as one chunk, once they are copied; the store must not be used any more."""
        if self._whole is not None:
            return self._whole
        self._make_room()  # where no row came
        for copy in self._copies:
            copy.result()
        prompt, position, token_id = (torch.from_numpy(labels) for labels in self._labels)
        values = {stream: list(layers) for stream, layers in self._values.items()}
        chunk = Chunk(prompt, position, token_id, values, self._peaks)
        n_rows = np.minimum(self._n_rows, self._max_rows)
        if (n_rows == self._max_rows).all():
            return chunk
        place = np.arange(len(prompt)) - np.repeat(self._starts, self._max_rows)
        return chunk.where(torch.from_numpy(place < np.repeat(n_rows, self._max_rows)))


def _rank_in_each(owner: np.ndarray) -> np.ndarray:
    """How many rows of the same owner stand before each row."""
    order = np.argsort(owner, kind="stable")
    grouped = owner[order]
    begins = np.flatnonzero(np.diff(grouped, prepend=-1))
    counts = np.diff(begins, append=len(grouped))
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(begins, counts)
    return rank


def _pieces(values: torch.Tensor, n_rows: int) -> Iterator[tuple[slice, slice]]:
    """Layers and rows of each copy: some layers whole, or of one layer that is larger some rows."""
    row_bytes = values.shape[-1] * values.itemsize
    n_layers = max(1, _COPY_BYTES // (row_bytes * n_rows))
    n_rows_each = max(1, _COPY_BYTES // row_bytes)
    for layer in range(0, len(values), n_layers):
        for row in range(0, n_rows, n_rows_each):
            yield slice(layer, layer + n_layers), slice(row, row + n_rows_each)


def _narrowed(chunk: Chunk, first: int, n: int) -> Chunk:
    """Rows of a range: views."""
    rows = slice(first, first + n)
    return Chunk(
        chunk.prompt[rows],
        chunk.position[rows],
        chunk.token_id[rows],
        {stream: [layer[rows] for layer in layers] for stream, layers in chunk.values.items()},
        {stream: peaks[:, rows] for stream, peaks in chunk.peaks.items()},
    )


def _copy(
    chunk: Chunk, stream: Stream, layers: slice, rows: np.ndarray, values: torch.Tensor, places: np.ndarray
) -> None:
    """Copy some layers; takes the chunk, which holds the memory that its rows lie in."""
    copy_rows(chunk.values[stream][layers], rows, values, places)
