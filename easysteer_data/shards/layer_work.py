"""One layer of a shard on its way into a file: summed in parts, held to what can be stored, written.

Each step begins when the one before it has ended, in whichever thread that was: nobody waits in between. The
file's hash is taken meanwhile where it can be without the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

import numpy as np

from easysteer_data.shards.check import check_values
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.layer_tar import LayerTar, LayerTarWriter
from easysteer_data.shards.measure import RowGroup, SplitSums, parts_of, statistics_of, sum_part
from easysteer_data.shards.side_by_side import SideBySide
from easysteer_data.shards.statistics import RowStatistics


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """A layer that is done.

    Attributes:
        splits: statistics of its rows by split.
        tar: its file; None in runs without rows.
        sha256: the file's hash in hex; "" without one.
    """

    splits: tuple[RowStatistics, ...]
    tar: LayerTar | None = None
    sha256: str = ""


class LayerWork:
    """Begins at once, in the threads of `beside`.

    Args:
        writer: of the shard, whose rows of this layer are there.
        key: the layer.
        groups: the shard's rows by split and class.
        beside: where the work is done; it must not end before the result is taken.
    """

    def __init__(
        self, writer: LayerTarWriter, key: LayerKey, groups: Sequence[RowGroup], beside: SideBySide
    ) -> None:
        self._writer, self._key, self._groups = writer, key, groups
        stream, layer_id = key
        self._rows = writer.shard.values[stream][layer_id]
        parts = parts_of(*self._rows.shape)
        self._sums: list[list[SplitSums]] = [[] for _ in parts]
        self._n_left = len(parts)
        self._lock = Lock()
        self._digest: Future[str] | None = None
        if writer.header.rows and writer.stores_as_captured(key):
            self._digest = beside.submit(writer.digest, key)  # first, since it takes longest
        self._splits: tuple[RowStatistics, ...] = ()
        self._written: Future[LayerTar | None] = Future()
        for place, part in enumerate(parts):
            beside.submit(self._sum, place, part)

    def result(self) -> WrittenLayer:
        """Wait for it.

        Raises:
            ProofError: a row is not finite, or overflows the storage type.
            OSError: the disk is full or fails.
        """
        tar = self._written.result()
        if tar is None:
            return WrittenLayer(self._splits)
        sha256 = (tar.sha256 or "") if self._digest is None else self._digest.result()
        return WrittenLayer(self._splits, tar, sha256)

    def _sum(self, place: int, part: range) -> None:
        """Sum one part; the last of them goes on with the whole layer."""
        try:
            n_classes = self._writer.header.label.n_class_means
            self._sums[place] = sum_part(self._rows, self._groups, n_classes, part)
            with self._lock:
                self._n_left -= 1
                is_last = self._n_left == 0
            if is_last:
                self._written.set_result(self._measure_and_write())
        except BaseException as error:  # raised by `result`
            with self._lock:
                if not self._written.done():
                    self._written.set_exception(error)

    def _measure_and_write(self) -> LayerTar | None:
        writer, key, header = self._writer, self._key, self._writer.header
        self._splits = statistics_of(self._sums)
        self._sums = []
        storage = header.streams[key[0]].torch_dtype if header.rows else None
        largest = float(np.max([split.max_abs for split in self._splits]))
        check_values(writer.shard, key, largest, storage)
        if not header.rows:
            return None
        return writer.write(key, hashed=self._digest is None)
