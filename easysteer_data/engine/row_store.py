"""Rows of a range of prompts at their final places, copied there as they arrive and not when all are there.

For captures in which the host knows beforehand how many rows each prompt can give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np
import torch

from easysteer_data.engine.copy_rows import copy_rows
from easysteer_data.engine.host_memory import empty
from easysteer_data.engine.wire import DTYPES, Chunk, StreamShape
from easysteer_data.types import Stream


class RowStore:
    """Room for the rows of consecutive prompts, in order of (prompt, position).

    Args:
        first: index of the first prompt.
        max_rows: most rows of each prompt.
        shapes: stream -> what is captured of it.
        copiers: runs the copies.
    """

    def __init__(
        self,
        first: int,
        max_rows: Sequence[int],
        shapes: Mapping[Stream, StreamShape],
        copiers: Executor,
    ) -> None:
        self._first = first
        self._copiers = copiers
        self._max_rows = np.array(max_rows, dtype=np.int64)
        self._starts = np.cumsum(self._max_rows) - self._max_rows
        self._n_rows = np.zeros(len(max_rows), dtype=np.int64)
        total = int(self._max_rows.sum())
        self._labels = np.zeros((3, total), dtype=np.int32)
        self._peaks = {s: torch.empty(len(shape.layer_ids), total) for s, shape in shapes.items()}
        self._values = {
            s: empty((len(shape.layer_ids), total, shape.width), DTYPES[shape.dtype])
            for s, shape in shapes.items()
        }
        self._copies: list[Future[None]] = []

    def add(self, chunk: Chunk) -> None:
        """Take a chunk's rows of these prompts; rows of a prompt stand together and in order."""
        owner = chunk.prompt.numpy().astype(np.int64) - self._first
        rows = np.flatnonzero((owner >= 0) & (owner < len(self._max_rows)))
        if not len(rows):
            return
        owner = owner[rows]
        begins = np.flatnonzero(np.diff(owner, prepend=-1))
        counts = np.diff(begins, append=len(owner))
        rank = np.arange(len(owner)) - np.repeat(begins, counts) + self._n_rows[owner]
        # The engine may run a step past a prompt's end: nothing expects that row.
        kept = rank < self._max_rows[owner]
        self._n_rows[owner[begins]] += counts
        rows, places = rows[kept], (self._starts[owner] + rank)[kept]
        for labels, given in zip(self._labels, (chunk.prompt, chunk.position, chunk.token_id), strict=True):
            labels[places] = given.numpy()[rows]
        self._copies.append(self._copiers.submit(self._copy, chunk, rows, places))

    def _copy(self, chunk: Chunk, rows: np.ndarray, places: np.ndarray) -> None:
        for stream, values in self._values.items():
            copy_rows(chunk.values[stream], rows, values, places)
            copy_rows(chunk.peaks[stream], rows, self._peaks[stream], places)

    def finish(self) -> Chunk:
        """Return all rows as one chunk, once they are copied; the store must not be used any more."""
        for copy in self._copies:
            copy.result()
        prompt, position, token_id = (torch.from_numpy(labels) for labels in self._labels)
        chunk = Chunk(prompt, position, token_id, self._values, self._peaks)
        n_rows = np.minimum(self._n_rows, self._max_rows)
        if (n_rows == self._max_rows).all():
            return chunk
        place = np.arange(len(prompt)) - np.repeat(self._starts, self._max_rows)
        return chunk.where(torch.from_numpy(place < np.repeat(n_rows, self._max_rows)))
