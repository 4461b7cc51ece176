"""One layer of a shard on its way into a file: summed in parts, held to what can be stored, written.

The last of the threads that do it goes on with what needs the others: nobody waits in between. A file of rows
as they were captured is written and hashed while they are summed. No file has its name before its values are
checked and the layer is approved.
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
from easysteer_data.shards.layer_bytes import LayerBytes
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
    """

    splits: tuple[RowStatistics, ...]
    tar: LayerTar | None = None


class LayerWork:
    """Does nothing before `start`, and gives the file its name after `approve`.

    Args:
        writer: of the shard, whose rows of this layer are there.
        key: the layer.
        groups: the shard's rows by split and class.
        beside: where the work is done; it must not be closed before the result is taken.
    """

    def __init__(
        self, writer: LayerTarWriter, key: LayerKey, groups: Sequence[RowGroup], beside: SideBySide
    ) -> None:
        self._writer, self._key, self._groups, self._beside = writer, key, groups, beside
        stream, layer_id = key
        self._rows = writer.shard.values[stream][layer_id]
        has_rows = writer.header.rows
        self._data = LayerBytes(writer, key) if has_rows and writer.has_bytes(key) else None
        path = writer.out / writer.name(key)
        self._file = DurableFile(path, hashed=self._data is None) if has_rows else None
        self._tar: LayerTar | None = None
        self._sums: list[list[SplitSums]] = []
        self._splits: tuple[RowStatistics, ...] = ()
        self._n_jobs = 0  # not done
        self._n_gates = 2  # not passed: all jobs are done, it is approved
        self._error: BaseException | None = None
        self._lock = Lock()
        self._digest: Future[str] = Future()
        self._ended: Future[None] = Future()

    def start(self) -> None:
        """Begin, in the threads of `beside`."""
        parts = parts_of(*self._rows.shape)
        self._sums = [[] for _ in parts]
        self._n_jobs = len(parts) + (self._data is not None)
        if self._data is not None:
            self._digest = self._beside.submit(self._data.sha256)  # first, since it takes longest
            self._beside.submit(self._do, self._write_bytes)
        for place, part in enumerate(parts):
            self._beside.submit(self._do, self._sum, place, part)

    def approve(self) -> None:
        """Say that the rows are proven: the file may have its name."""
        self._beside.submit(self._pass_gate)

    def result(self) -> WrittenLayer:
        """Wait for it; it must have been started and approved.

        Raises:
            ProofError: a row is not finite, or overflows the storage type.
            OSError: the disk is full or fails.
        """
        self._ended.result()
        if self._data is None or self._file is None:
            return WrittenLayer(self._splits, self._tar)
        name, n_bytes = self._writer.name(self._key), self._file.n_bytes
        return WrittenLayer(
            self._splits, LayerTar(name, n_bytes, self._digest.result(), self._data.spans, None)
        )

    def discard(self) -> None:
        """Remove a file that has not its name yet; when nothing of the work goes on."""
        if self._file is not None:
            self._file.discard()

    def _do(self, job: Callable[..., None], *args: object) -> None:
        """Do one job; after the last one, what needs them all."""
        self._attempt(job, *args)
        with self._lock:
            self._n_jobs -= 1
            if self._n_jobs:
                return
        if self._error is None:
            self._attempt(self._check_and_sync)
        self._pass_gate()

    def _pass_gate(self) -> None:
        with self._lock:
            self._n_gates -= 1
            if self._n_gates:
                return
        if self._error is None and self._file is not None:
            self._attempt(self._file.keep)
        if self._error is None:
            self._ended.set_result(None)
            return
        self._attempt(self.discard)
        self._ended.set_exception(self._error)

    def _attempt(self, action: Callable[..., None], *args: object) -> None:
        """Do it; the first error is kept for `result`, further ones are noted in it."""
        try:
            action(*args)
        except BaseException as error:
            with self._lock:
                if self._error is None:
                    self._error = error
                else:
                    self._error.add_note(f"and then: {type(error).__name__}: {error}")

    def _write_bytes(self) -> None:
        if self._data is not None and self._file is not None:
            self._file.open()
            self._data.write_to(self._file)

    def _sum(self, place: int, part: range) -> None:
        n_classes = self._writer.header.label.n_class_means
        self._sums[place] = sum_part(self._rows, self._groups, n_classes, part)

    def _check_and_sync(self) -> None:
        self._splits = statistics_of(self._sums)
        self._sums = []
        header = self._writer.header
        storage = header.streams[self._key[0]].torch_dtype if header.rows else None
        largest = float(np.max([split.max_abs for split in self._splits]))
        check_values(self._writer.shard, self._key, largest, storage)
        if self._file is None:
            return
        if self._data is None:
            self._file.open()
            self._tar = self._writer.write(self._key, self._file)
        self._file.sync()
