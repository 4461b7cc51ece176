"""Where actors put the files of a shard before it is committed: beside a run's folder, or under its URL.

Each actor has a place of its own, so that two copies of a shard never meet. Knows files and names, no actor.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol
from uuid import uuid4

from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.shards import RunWriter
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.shards.object_store import ObjectStore, is_url
from easysteer_data.shards.remote_writer import RemoteRunWriter

_STAGING = "staging"
_N_FILES_AT_ONCE = 8


class Staging(Protocol):
    """What the driver does with the places of its actors."""

    def place(self, actor: int) -> str:
        """A folder or URL for an actor's files."""

    def commit(self, entry: ShardEntry, actor: int) -> None:
        """Take a shard into the run."""

    def discard(self, entry: ShardEntry, actor: int) -> None:
        """Remove a shard that came too late."""

    def remove(self, actor: int | None = None) -> None:
        """Remove what an actor left, None = all of them, those of a killed driver too; it may still write."""


class FolderStaging:
    """Folders beside the run's, on the same storage: files are moved."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._root = writer.out.with_name(f"{writer.out.name}.{_STAGING}").absolute()
        self._driver = uuid4().hex[:8]  # an actor of a killed driver may write on for a while

    def place(self, actor: int) -> str:
        """The actor's folder."""
        return str(self._root / f"{self._driver}-actor-{actor:04d}")

    def commit(self, entry: ShardEntry, actor: int) -> None:
        """Move a shard's files into the run."""
        self._writer.adopt(entry, Path(self.place(actor)), keep=False)

    def discard(self, entry: ShardEntry, actor: int) -> None:
        """Remove a shard's files."""
        for file in entry.files:
            (Path(self.place(actor)) / file.name).unlink(missing_ok=True)

    def remove(self, actor: int | None = None) -> None:
        """Remove folders."""
        shutil.rmtree(self._root if actor is None else self.place(actor), ignore_errors=True)


class StoreStaging:
    """Prefixes under the run's URL: the store copies objects by itself."""

    def __init__(self, writer: RemoteRunWriter, store: ObjectStore) -> None:
        self._writer = writer
        self._store = store
        self._driver = uuid4().hex[:8]

    def place(self, actor: int) -> str:
        """The actor's URL."""
        return f"{self._store.root}/{self._prefix(actor)}"

    def commit(self, entry: ShardEntry, actor: int) -> None:
        """Have the store copy a shard's objects to their names."""
        self._writer.adopt(entry, self._prefix(actor))

    def discard(self, entry: ShardEntry, actor: int) -> None:
        """Remove a shard's objects."""
        for file in entry.files:
            self._store.remove(f"{self._prefix(actor)}/{file.name}")

    def remove(self, actor: int | None = None) -> None:
        """Remove objects."""
        for name in self._store.sizes(_STAGING if actor is None else self._prefix(actor)):
            self._store.remove(name)

    def _prefix(self, actor: int) -> str:
        return f"{_STAGING}/{self._driver}-actor-{actor:04d}"


def staging_of(plan: CapturePlan, writer: RunWriter | RemoteRunWriter) -> Staging:
    """The places for a run that is written."""
    if isinstance(writer, RunWriter):
        return FolderStaging(writer)
    return StoreStaging(writer, ObjectStore(writer.out, dict(plan.settings.upload.options)))


def write_staged(plan: CapturePlan, place: str, write: Callable[[Path], ShardEntry]) -> ShardEntry:
    """The actor's: write a shard's files into its place.

    Args:
        plan: says how a store is reached, and where its spool is.
        place: a folder or a URL.
        write: writes the files into a folder.
    """
    if not is_url(place):
        return write(Path(place))
    store = ObjectStore(place, dict(plan.settings.upload.options))
    with (
        TemporaryDirectory(prefix=f"{_own_prefix(os.getpid())}-", dir=_swept(plan)) as folder,
        ThreadPoolExecutor(_N_FILES_AT_ONCE, "easysteer-data-upload") as pool,
    ):
        entry = write(Path(folder))
        uploads = [
            pool.submit(store.put_file, file.name, Path(folder) / file.name, file.n_bytes)
            for file in entry.files
        ]
        for upload in uploads:
            upload.result()
    return entry


def _own_prefix(pid: int | str) -> str:
    return f"actor-{socket.gethostname()}-{pid}"


def _swept(plan: CapturePlan) -> Path:
    """The spool of this machine, without what its killed actors left."""
    spool = Path(plan.settings.upload.spool)
    spool.mkdir(parents=True, exist_ok=True)
    for left in spool.glob(f"{_own_prefix('*')}-*"):
        pid = left.name.removeprefix(_own_prefix("")).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
    return spool
