"""Writes a run under a URL shard by shard: into a folder, uploaded from there, committed when all is there.

An object store can't append: each committed shard has a journal object of its own. Knows no engine.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import canonical_json, parse_json, readable_json
from easysteer_data.shards.header import Json, RunHeader
from easysteer_data.shards.index import layer_keys
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.lock import LOCK
from easysteer_data.shards.manifest import Manifest, check_entry, refuse_gaps
from easysteer_data.shards.object_store import ObjectStore
from easysteer_data.shards.remote_lock import RemoteLock
from easysteer_data.shards.resume import refuse_other_run
from easysteer_data.shards.shard_files import make_folders, write_shard
from easysteer_data.shards.space import shard_bytes
from easysteer_data.shards.statistics_file import StatisticsMerge
from easysteer_data.types import CapturedShard, OnExisting

_N_FILES_AT_ONCE = 8
_JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class Spool:
    """A folder for shards on their way to an object store.

    Attributes:
        folder: this process's own; what is in it is removed.
        max_bytes: of the shards in it; one shard may always be.
        min_free_bytes: that each shard must leave free of its file system; 0 = no check.
    """

    folder: Path
    max_bytes: int
    min_free_bytes: int = 0


class RemoteRunWriter:
    """A run under a URL being written, by nobody else at the same time; `open` makes one.

    `write` returns when a shard's files are in the spool; they are uploaded meanwhile, and a shard is
    committed when the store has all of them. Leaving the `with` block waits for that.

    Attributes:
        out: the URL.
        header: the header that stands.
    """

    def __init__(
        self,
        store: ObjectStore,
        header: RunHeader,
        committed: dict[int, ShardEntry],
        lock: RemoteLock,
        spool: Spool,
    ) -> None:
        self._store = store
        self._committed = committed
        self._lock = lock
        self._spool = spool
        self._shards = ThreadPoolExecutor(1, "easysteer-data-upload")
        self._files = ThreadPoolExecutor(_N_FILES_AT_ONCE, "easysteer-data-upload-file")
        self._uploads: deque[tuple[Future[None], int]] = deque()  # of the shards that are on their way
        self._begun = set(committed)
        self._writing = Lock()
        self.out = store.root
        self.header = header

    @classmethod
    def open(
        cls, store: ObjectStore, header: RunHeader, spool: Spool, on_existing: OnExisting = "resume"
    ) -> Self:
        """Begin a run under a URL, or continue the one that is there.

        Raises:
            SettingsMismatchError: there is a run of other settings; the message shows the difference.
            RunError: another process writes there, or something else is there, or a run that `on_existing`
                refuses; or the store can't be reached.
        """
        lock = RemoteLock.acquire(store)
        try:
            header, committed = _claim(store, header, on_existing)
            shutil.rmtree(spool.folder, ignore_errors=True)
            make_folders(spool.folder, header)
        except BaseException:
            lock.release()
            raise
        return cls(store, header, committed, lock, spool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._settle(0)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"an upload failed as well: {failure}")
        finally:
            self._shards.shutdown()
            self._files.shutdown()
            shutil.rmtree(self._spool.folder, ignore_errors=True)
            self._lock.release()

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the committed shards."""
        return frozenset(self._committed)

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """The committed shards, by number."""
        return tuple(self._committed[number] for number in sorted(self._committed))

    def write(self, shard: CapturedShard) -> ShardEntry:
        """Put one shard on its way; in any order, each once. Waits while the spool is full.

        Threads take turns, so that no more shards are in the spool than it may hold.

        Raises:
            RunError: the shard is not as planned or was written already; an upload failed, or another process
                has taken the run over; or the spool's disk is full.
            ProofError: a row is not finite, or overflows the storage type.
        """
        with self._writing:
            if shard.number in self._begun:
                raise RunError(f"{self.out}: shard {shard.number} is committed already")
            self._settle(self._spool.max_bytes - shard_bytes(self.header, len(shard.index)))
            entry = write_shard(self._spool.folder, self.header, shard, self._spool.min_free_bytes).entry
            self._begun.add(shard.number)
            self._uploads.append((self._shards.submit(self._upload, entry), entry.n_bytes))
        return entry

    def adopt(self, entry: ShardEntry, prefix: str) -> None:
        """Commit a shard whose files were uploaded under another prefix of the URL; they are moved.

        Raises:
            RunError: the shard is committed already or not a planned one; a file is missing or of another
                size; or another process has taken the run over.
        """
        if entry.number in self._begun:
            raise RunError(f"{self.out}: shard {entry.number} is committed already")
        check_entry(entry, self.header)
        self._lock.check()
        self._begun.add(entry.number)
        moves = [
            self._files.submit(self._store.move, f"{prefix}/{file.name}", file.name, file.n_bytes)
            for file in entry.files
        ]
        for move in moves:
            move.result()
        self._commit(entry)

    def close(self, measured: Json | None = None) -> Manifest:
        """Merge the statistics and write the manifest: the run is finished.

        Raises:
            RunError: shards are missing, the message names them; or the store fails.
        """
        self._lock.check()
        self._settle(0)
        n_shards = len(self.header.plan)
        refuse_gaps(self.out, n_shards, self._committed)
        names = [layout.statistics_name(number) for number in range(n_shards)]
        merge = StatisticsMerge(layer_keys(self.header.layers))
        for path in self._files.map(self._fetch, names):
            merge.add_file(path)
        data = merge.to_bytes()
        statistics = FileEntry(layout.STATISTICS, len(data), hashlib.sha256(data).hexdigest())
        manifest = Manifest(self.header, self.entries, statistics, measured or {})
        self._lock.check()
        self._store.put(layout.STATISTICS, data)
        self._store.put(layout.MANIFEST, manifest.to_bytes())
        return manifest

    def _settle(self, max_bytes: int) -> None:
        """Wait until at most so many bytes are on their way; raises what an upload raised."""
        while self._uploads and (self._uploads[0][0].done() or sum(n for _, n in self._uploads) > max_bytes):
            future, _ = self._uploads.popleft()
            future.result()

    def _upload(self, entry: ShardEntry) -> None:
        for _ in self._files.map(self._upload_file, entry.files):
            pass
        self._commit(entry)

    def _commit(self, entry: ShardEntry) -> None:
        self._lock.check()
        self._store.put(journal_name(entry.number), canonical_json(entry.to_json()))
        self._committed[entry.number] = entry

    def _upload_file(self, file: FileEntry) -> None:
        self._lock.check()
        path = self._spool.folder / file.name
        self._store.put_file(file.name, path, file.n_bytes)
        path.unlink()

    def _fetch(self, name: str) -> Path:
        data = self._store.read(name)
        if data is None:
            raise RunError(f"{self.out}/{name}: missing")
        path = self._spool.folder / name
        path.write_bytes(data)
        return path


def finished_remote_run(store: ObjectStore, fingerprint: str) -> Manifest | None:
    """The manifest of a complete run of this fingerprint under a URL, or None."""
    data = store.read(layout.MANIFEST)
    if data is None:
        return None
    try:
        manifest = Manifest.from_json(parse_json(data, layout.MANIFEST))
    except RunError:
        return None
    if manifest.header.fingerprint != fingerprint:
        return None
    sizes = store.sizes("")
    files = [*(file for shard in manifest.shards for file in shard.files), manifest.statistics]
    return manifest if all(sizes.get(file.name) == file.n_bytes for file in files) else None


def journal_name(number: int) -> str:
    """The object that says that a shard is committed."""
    return f"{_JOURNAL}/shard-{number:06d}.json"


def _claim(
    store: ObjectStore, header: RunHeader, on_existing: OnExisting
) -> tuple[RunHeader, dict[int, ShardEntry]]:
    """Begin a run under a locked URL, or find the one that is there, and its committed shards."""
    sizes = store.sizes("")
    data = store.read(layout.RUN)
    if data is None:
        strangers = sorted(set(sizes) - {LOCK})
        if strangers:
            raise RunError(
                f"{store.root} is not empty (it holds {strangers[0]}) and has no {layout.RUN}, so it is no "
                "run; choose another output"
            )
        store.put(layout.RUN, readable_json(header.to_json()))
        return header, {}
    if on_existing != "resume":
        raise RunError(
            f"{store.root} holds a run already; on_existing=resume continues it. A run in an object store is "
            "not overwritten: remove it with the store's own tools, or choose another output"
        )
    found = RunHeader.from_json(parse_json(data, layout.RUN))
    refuse_other_run(found, header, store.root)
    names = [name for name in sizes if name.startswith(f"{_JOURNAL}/")]
    with ThreadPoolExecutor(_N_FILES_AT_ONCE) as pool:
        entries = list(pool.map(lambda name: _entry(store, name, found), names))
    done = {
        entry.number: entry
        for entry in entries
        if all(sizes.get(file.name) == file.n_bytes for file in entry.files)
    }
    if len(done) < len(found.plan):
        store.remove(layout.MANIFEST)
    return found, done


def _entry(store: ObjectStore, name: str, header: RunHeader) -> ShardEntry:
    entry = ShardEntry.from_json(parse_json(store.read(name) or b"", f"{store.root}/{name}"))
    check_entry(entry, header)
    return entry
