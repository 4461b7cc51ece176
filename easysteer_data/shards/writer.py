"""Writes a run shard by shard so that a crash at any moment loses at most the shards in flight.

Order: a shard's files, each whole or absent; its line in the journal; after the last shard, the manifest.
Knows no engine and no corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.check import check_shard
from easysteer_data.shards.durable import append_durably, sync_folder
from easysteer_data.shards.header import Json, RunHeader
from easysteer_data.shards.index import LayerKey, layer_keys
from easysteer_data.shards.journal import ShardEntry, journal_bytes
from easysteer_data.shards.lock import FolderLock
from easysteer_data.shards.manifest import Manifest, check_entry, refuse_gaps
from easysteer_data.shards.resume import claim_folder, lock_folder
from easysteer_data.shards.shard_files import write_file, write_shard
from easysteer_data.shards.shard_work import ShardWork, remove_files
from easysteer_data.shards.space import check_space, shard_bytes, write_failures_explained
from easysteer_data.shards.statistics import LayerStatistics
from easysteer_data.shards.statistics_file import StatisticsMerge
from easysteer_data.shards.taking import take_file
from easysteer_data.types import CapturedShard, OnExisting


class RunWriter:
    """A run folder being written, by nobody else at the same time; `open` makes one.

    Leaving its `with` block lets the folder go; only `close` makes the run a finished one.

    Attributes:
        out: the folder.
        header: the header that stands.
    """

    def __init__(
        self,
        out: Path,
        header: RunHeader,
        committed: dict[int, ShardEntry],
        lock: FolderLock,
        min_free_bytes: int,
    ) -> None:
        self.out = out
        self._committed = committed
        self._lock = lock
        self._min_free_bytes = min_free_bytes
        self._committing = Lock()
        self._reserving = Lock()
        self._has_left = False
        self._writing: dict[int, int] = {}  # number -> bytes, of shards that some thread is writing
        self._begun: dict[int, ShardWork] = {}  # of these, those that were begun before all rows were there
        self.header = header
        self._merge = StatisticsMerge(layer_keys(header.layers))

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
        with self._reserving:
            self._has_left = True
            begun, self._begun = self._begun, {}
        with ExitStack() as last:  # all of it, also if one is interrupted
            last.callback(self._lock.release)
            for work in begun.values():
                last.callback(work.drop)

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the committed shards."""
        return frozenset(self._committed)

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """The committed shards, by number."""
        return tuple(self._committed[number] for number in sorted(self._committed))

    def write(self, shard: CapturedShard) -> ShardEntry:
        """Write and commit one shard; in any order, each once, also by several threads at once.

        Rows are converted to the storage type.

        Raises:
            RunError: the shard is not as planned, or is committed already; or the disk is full or fails: the
                shard is not committed, the folder can be continued.
            ProofError: a row is not finite, or overflows the storage type.
        """
        with self._reserving:
            work = self._begun.pop(shard.number, None)
            min_free_bytes = 0 if work is not None else self._reserve(shard)
        try:
            written = write_shard(self.out, self.header, shard, min_free_bytes, work)
            try:
                self._commit(written.entry, written.statistics)
            except BaseException:
                if shard.number not in self._committed:
                    remove_files(self.out, self.header, shard.number)
                raise
        finally:
            with self._reserving:
                del self._writing[shard.number]
        return written.entry

    def begin(self, shard: CapturedShard, is_current: Callable[[], bool] = lambda: True) -> ShardWork | None:
        """Begin to write a shard whose labels are known and whose rows are still coming; `write` follows.

        What is written before is of no effect unless `write` is given rows with the same labels in the same
        memory.

        Args:
            shard: as for `write`; of the prompts, what was generated does not matter.
            is_current: see ShardWork.

        Returns:
            What the layers are to be begun with as they come; None where the shard can't be begun: `write`
            then says why.
        """
        try:
            check_shard(shard, self.header)
            with self._reserving:
                return None if self._has_left else self._begin(shard, is_current)
        except (RunError, OSError):
            return None

    def _begin(self, shard: CapturedShard, is_current: Callable[[], bool]) -> ShardWork:
        min_free_bytes = self._reserve(shard)
        try:
            if min_free_bytes:
                check_space(self.out, shard_bytes(self.header, len(shard.index)), min_free_bytes)
            work = self._begun[shard.number] = ShardWork(self.out, self.header, shard, is_current)
        except BaseException:
            del self._writing[shard.number]
            raise
        return work

    def _reserve(self, shard: CapturedShard) -> int:
        """Note that a shard is being written; return the bytes that it must leave free, 0 = no check."""
        self._refuse_committed(shard.number)
        if shard.number in self._writing:
            raise RunError(f"{self.out}: shard {shard.number} is being written already")
        # What other threads are writing is not on the disk yet, or not all of it.
        reserved = sum(self._writing.values())
        self._writing[shard.number] = shard_bytes(self.header, len(shard.index))
        return self._min_free_bytes and self._min_free_bytes + reserved

    def adopt(self, entry: ShardEntry, source: Path, *, keep: bool) -> None:
        """Commit a shard whose files were written into another folder by `write_shard`.

        Args:
            entry: the shard.
            source: the folder.
            keep: whether the files stay there as well: as hard links where the file system has them.
                Otherwise they are moved.

        Raises:
            RunError: the shard is committed already or not a planned one; a file is missing, of another size
                or, where it had to be copied, altered; or the disk is full or fails.
        """
        with self._reserving:
            self._refuse_committed(entry.number)
            if entry.number in self._writing:
                raise RunError(f"{self.out}: shard {entry.number} is being written already")
        check_entry(entry, self.header)
        if faults := entry.faults(source):
            raise BadShardError(f"{source}: shard {entry.number} can't be taken over: {'; '.join(faults)}")
        with write_failures_explained(self.out):
            for file in entry.files:
                take_file(file, source, self.out, keep=keep)
            for folder in dict.fromkeys((self.out / file.name).parent for file in entry.files):
                sync_folder(folder)
        self._commit(entry)

    def _refuse_committed(self, number: int) -> None:
        if number in self._committed:
            raise RunError(f"{self.out}: shard {number} is committed already")

    def close(self, measured: Json | None = None) -> Manifest:
        """Merge the statistics and write the manifest: the run is finished, and the folder let go.

        Args:
            measured: what was counted and timed meanwhile, such as tokens, gates and seconds; plain JSON
                that the manifest keeps as it is.

        Raises:
            RunError: shards are missing, the message names them; or the disk is full or fails.
        """
        n_shards = len(self.header.plan)
        refuse_gaps(self.out, n_shards, self._committed)
        shards = tuple(self._committed[number] for number in range(n_shards))
        self._merge_statistics()
        with write_failures_explained(self.out):
            statistics = write_file(self.out, layout.STATISTICS, self._merge.to_bytes())
            manifest = Manifest(self.header, shards, statistics, measured or {})
            write_file(self.out, layout.MANIFEST, manifest.to_bytes())
        self._lock.release()
        return manifest

    def _commit(
        self, entry: ShardEntry, statistics: Mapping[LayerKey, LayerStatistics] | None = None
    ) -> None:
        with self._committing:
            with write_failures_explained(self.out):
                append_durably(self.out / layout.JOURNAL, journal_bytes([entry]))
            self._committed[entry.number] = entry
            if statistics is not None and entry.number == self._merge.n_shards:
                self._merge.add(statistics)
            with suppress(BadShardError):  # `close` raises it
                self._merge_statistics()

    def _merge_statistics(self) -> None:
        """Take in the shards that follow those so far: with thousands at the end, that would take long."""
        while (number := self._merge.n_shards) in self._committed:
            self._merge.add_file(self.out / layout.statistics_name(number))
