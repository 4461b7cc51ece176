"""One layer of a shard on its way into a file: summed in parts, held to what can be stored, written.

The last of the threads that do it goes on with what needs the others: nobody waits in between. A file of rows
as they were captured is written and hashed while they are summed, and has its name once they are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

import numpy as np

from easysteer_data.shards.check import check_values
from easysteer_data.shards.durable import DurableFile
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.layer_tar import LayerBytes, LayerTar, LayerTarWriter
from easysteer_data.shards.measure import RowGroup, SplitSums, parts_of, statistics_of, sum_part
from easysteer_data.shards.side_by_side import SideBySide
from easysteer_data.shards.statistics import RowStatistics


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """A layer that is done.

    Attributes:
        splits: statistics of its rows by split.
        tar: its file; None in runs without rows.
    """

    splits: tuple[RowStatistics, ...]
    tar: LayerTar | None = None


class _RawFile:
    """A layer's file of rows as they were captured, written under a temporary name and hashed meanwhile."""

    def __init__(self, writer: LayerTarWriter, key: LayerKey, beside: SideBySide) -> None:
        self._name = writer.name(key)
        self._data: LayerBytes = writer.bytes_of(key)
        self._file = DurableFile(writer.out / self._name, hashed=False)
        self._is_open = False
        self._digest = beside.submit(self._data.sha256)  # first, since it takes longest

    def write(self) -> None:
        self._file.open()
        self._is_open = True
        self._data.write_to(self._file)

    def finish(self) -> None:
        self._is_open = False
        self._file.finish()

    def discard(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.discard()

    def result(self) -> LayerTar:
        return LayerTar(self._name, self._file.n_bytes, self._digest.result(), self._data.spans, None)


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
        self._splits: tuple[RowStatistics, ...] = ()
        self._written: Future[LayerTar | None] = Future()
        self._error: BaseException | None = None
        self._lock = Lock()
        is_raw = writer.header.rows and writer.stores_as_captured(key)
        self._raw = _RawFile(writer, key, beside) if is_raw else None
        self._n_left = len(parts) + (self._raw is not None)
        if self._raw is not None:
            beside.submit(self._do, self._raw.write)
        for place, part in enumerate(parts):
            beside.submit(self._do, self._sum, place, part)

    def result(self) -> WrittenLayer:
        """Wait for it.

        Raises:
            ProofError: a row is not finite, or overflows the storage type.
            OSError: the disk is full or fails.
        """
        tar = self._written.result()
        return WrittenLayer(self._splits, tar if self._raw is None else self._raw.result())

    def discard(self) -> None:
        """Remove a file that has not its name yet; when nothing of the work goes on."""
        if self._raw is not None:
            self._raw.discard()

    def _do(self, job: Callable[..., None], *args: object) -> None:
        """Do one job; after the last one, what needs them all."""
        try:
            job(*args)
        except BaseException as error:  # raised by `result`
            self._error = error
        with self._lock:
            self._n_left -= 1
            if self._n_left:
                return
        try:
            self._written.set_result(self._finish())
        except BaseException as error:  # raised by `result`
            self.discard()
            self._written.set_exception(error)

    def _sum(self, place: int, part: range) -> None:
        n_classes = self._writer.header.label.n_class_means
        self._sums[place] = sum_part(self._rows, self._groups, n_classes, part)

    def _finish(self) -> LayerTar | None:
        if self._error is not None:
            raise self._error
        writer, key, header = self._writer, self._key, self._writer.header
        self._splits = statistics_of(self._sums)
        self._sums = []
        storage = header.streams[key[0]].torch_dtype if header.rows else None
        largest = float(np.max([split.max_abs for split in self._splits]))
        check_values(writer.shard, key, largest, storage)
        if self._raw is not None:
            self._raw.finish()
            return None
        return writer.write(key) if header.rows else None
