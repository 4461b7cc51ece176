"""Writes a run shard by shard so that a crash at any moment loses at most the shards in flight.

Order: a shard's files, each whole or absent; its line in the journal; after the last shard, the manifest.
Knows no engine and no corpus.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.check import check_shard, check_values
from easysteer_data.shards.durable import append_durably, write_durably
from easysteer_data.shards.header import Json, RunHeader
from easysteer_data.shards.index import LayerKey, index_bytes, layer_keys
from easysteer_data.shards.journal import FileEntry, ShardEntry, journal_bytes
from easysteer_data.shards.labels import row_labels
from easysteer_data.shards.layer_tar import LayerTar, LayerTarWriter
from easysteer_data.shards.lock import FolderLock
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.measure import group_rows, measure
from easysteer_data.shards.pack import packs_of
from easysteer_data.shards.prompt_table import prompt_table_bytes
from easysteer_data.shards.resume import claim_folder, lock_folder
from easysteer_data.shards.space import check_space, shard_bytes, write_failures_explained
from easysteer_data.shards.statistics import LayerStatistics, RowStatistics
from easysteer_data.shards.statistics_file import merge_files, statistics_bytes
from easysteer_data.shards.storage import StorageError
from easysteer_data.types import CapturedShard, OnExisting


class RunWriter:
    """A run folder being written, by nobody else at the same time; `open` makes one.

    Leaving its `with` block lets the folder go; only `close` makes the run a finished one.
    """

    def __init__(
        self,
        out: Path,
        header: RunHeader,
        committed: dict[int, ShardEntry],
        lock: FolderLock,
        min_free_bytes: int,
    ) -> None:
        self._out = out
        self._committed = committed
        self._lock = lock
        self._min_free_bytes = min_free_bytes
        self.header = header

    @classmethod
    def open(
        cls, out: Path, header: RunHeader, *, on_existing: OnExisting = "resume", min_free_bytes: int = 0
    ) -> Self:
        """Create a run folder, or continue the run that is in it.

        Shards whose files were removed or resized since they were committed count as not done. The header
        in the folder stands: a continued run keeps the provenance of its start.

        Args:
            out: the folder.
            header: the run to write.
            on_existing: what to do with a run that is in the folder: "resume" continues it, "fail" refuses
                it, "overwrite" removes its files and begins anew.
            min_free_bytes: bytes of the file system that each shard must leave free; 0 = no check.

        Raises:
            SettingsMismatchError: the folder holds a run of other settings; the message shows the difference.
            RunError: another process writes there, or the folder holds something else, a damaged run, or a
                run that `on_existing` refuses.
        """
        lock = lock_folder(out)
        try:
            with write_failures_explained(out):
                header, committed = claim_folder(out, header, on_existing)
        except BaseException:
            lock.release()
            raise
        return cls(out, header, committed, lock, min_free_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the committed shards."""
        return frozenset(self._committed)

    def write(self, shard: CapturedShard) -> ShardEntry:
        """Write and commit one shard; in any order, each once. Rows are converted to the storage type.

        Raises:
            RunError: the shard is not as planned, or is committed already; or the disk is full or fails: the
                shard is not committed, the folder can be continued.
            ProofError: a row is not finite, or overflows the storage type.
        """
        if shard.number in self._committed:
            raise RunError(f"{self._out}: shard {shard.number} is committed already")
        check_shard(shard, self.header)
        if self._min_free_bytes:
            check_space(self._out, shard_bytes(self.header, len(shard.index)), self._min_free_bytes)
        with write_failures_explained(self._out):
            return self._commit(shard, self._write_files(shard))

    def _write_files(self, shard: CapturedShard) -> tuple[FileEntry, ...]:
        number, label = shard.number, self.header.label
        measured = self._measure(shard)  # all layers are proven before a file is written
        prompts = prompt_table_bytes(shard.prompts, label)
        packs = packs_of(shard, self.header)
        writer = LayerTarWriter(self._out, self.header, shard, packs, row_labels(shard.prompts, label))
        tars = {key: writer.write(key) for key in layer_keys(self.header.tar_layers)}
        statistics = {key: _with_error(splits, tars.get(key)) for key, splits in measured.items()}
        files = [tar.file for tar in tars.values()]
        files.append(self._write(layout.prompts_name(number), prompts))
        files.append(self._write(layout.statistics_name(number), statistics_bytes(statistics)))
        if tars:
            spans = {key: tar.spans for key, tar in tars.items()}
            files.append(self._write(layout.index_name(number), index_bytes(number, packs, spans)))
        return tuple(files)

    def _measure(self, shard: CapturedShard) -> dict[LayerKey, tuple[RowStatistics, ...]]:
        """Statistics of each layer's rows by split, all of them such that they can be stored."""
        label = self.header.label
        groups = group_rows(shard.prompts, label)
        measured = {}
        for key in layer_keys(self.header.layers):
            stream, layer_id = key
            splits = measure(shard.values[stream][layer_id], groups, label.n_class_means)
            storage = self.header.streams[stream].torch_dtype if self.header.rows else None
            check_values(shard, key, float(np.max([split.max_abs for split in splits])), storage)
            measured[key] = splits
        return measured

    def close(self, measured: Json | None = None) -> Manifest:
        """Merge the statistics and write the manifest: the run is finished, and the folder let go.

        Args:
            measured: what was counted and timed meanwhile, such as tokens, gates and seconds; plain JSON
                that the manifest keeps as it is.

        Raises:
            RunError: shards are missing, the message names them; or the disk is full or fails.
        """
        n_shards = len(self.header.plan)
        missing = [number for number in range(n_shards) if number not in self._committed]
        if missing:
            shown = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
            raise RunError(f"{self._out}: {len(missing)} of {n_shards} shards are not written: {shown}")
        paths = [self._out / layout.statistics_name(number) for number in range(n_shards)]
        shards = tuple(self._committed[number] for number in range(n_shards))
        merged = merge_files(paths, layer_keys(self.header.layers))
        with write_failures_explained(self._out):
            statistics = self._write(layout.STATISTICS, merged)
            manifest = Manifest(self.header, shards, statistics, measured or {})
            self._write(layout.MANIFEST, manifest.to_bytes())
        self._lock.release()
        return manifest

    def _write(self, name: str, data: bytes) -> FileEntry:
        file = write_durably(self._out / name, data)
        return FileEntry(name, file.n_bytes, file.sha256)

    def _commit(self, shard: CapturedShard, files: tuple[FileEntry, ...]) -> ShardEntry:
        entry = ShardEntry(shard.number, self.header.plan[shard.number], len(shard.index), files)
        append_durably(self._out / layout.JOURNAL, journal_bytes([entry]))
        self._committed[shard.number] = entry
        return entry


def _with_error(splits: tuple[RowStatistics, ...], tar: LayerTar | None) -> LayerStatistics:
    if tar is None:
        return LayerStatistics(splits, None)
    n_rows, sum_square = sum(s.n_rows for s in splits), sum(s.sum_square for s in splits)
    return LayerStatistics(splits, tar.error or StorageError(n_rows, sum_square))
