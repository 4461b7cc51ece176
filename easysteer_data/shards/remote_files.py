"""Files of a run folder at a URL, read in ranges that are tried again, kept in a folder if one is given.

Knows bytes and names, no row. Which schemes there are is fsspec's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec  # type: ignore[import-untyped]

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards.journal import FileEntry

T = TypeVar("T")

_BLOCK_BYTES = 8 * 2**20
_FIRST_WAIT_S = 0.2
_PARTIAL = ".partial"
_PIPE = "pipe:"


@dataclass(frozen=True, slots=True)
class FileCache:
    """Whole files in a folder under their sha256, those not used for longest removed first.

    Attributes:
        folder: made where it is missing; several processes may share it.
        max_bytes: what all files together may take; a file larger than that is kept alone.
    """

    folder: Path
    max_bytes: int

    def open(self, entry: FileEntry, fetch: Callable[[], bytes]) -> BinaryIO:
        """The file, fetched where it is not there.

        Raises:
            BadShardError: what was fetched is not the file that the manifest lists.
        """
        path = self.folder / entry.sha256
        with contextlib.suppress(FileNotFoundError):
            file = path.open("rb")
            os.utime(path)
            return file
        data = fetch()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise BadShardError(f"{entry.name}: altered, its sha256 is not the manifest's")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(len(data))
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=_PARTIAL, delete=False) as partial:
            partial.write(data)
        Path(partial.name).rename(path)
        return io.BytesIO(data)

    def _make_room(self, n_bytes: int) -> None:
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        total = n_bytes + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                return
            if path.suffix != _PARTIAL:
                path.unlink(missing_ok=True)
                total -= size


@dataclass(frozen=True)
class RemoteFiles:
    """A run folder at a URL such as `s3://bucket/run`, `gs://`, `https://` or `hf://`.

    Attributes:
        root: the URL; or `pipe:` and a shell command in which `{}` stands for a file's name and which
            prints the file, e.g. `pipe:ssh host cat run/{}`.
        options: of the file system: for `s3` and `gs` those of obstore's stores, e.g.
            `{"region": "eu-west-1", "skip_signature": True}`, otherwise those of fsspec's.
        n_tries: how often a range is asked for before reading fails; waits double from 0.2 s.
        cache: keeps whole files; None streams them.
    """

    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    n_tries: int = 6
    cache: FileCache | None = None

    def read(self, name: str) -> bytes:
        """All of a small file; RunError if it can't be read."""
        return self._tried(name, lambda: self._fetched(name, None, None))

    def open(self, entry: FileEntry) -> BinaryIO:
        """A file that the manifest lists, from its beginning.

        Raises:
            RunError: it can't be read; here, or when the stream is read.
            BadShardError: it is not the file that the manifest lists.
        """
        if self.cache is not None:
            return self.cache.open(entry, lambda: self.range(entry, 0, entry.n_bytes))
        if self.root.startswith(_PIPE):  # a command can't begin in the middle of a file
            return io.BytesIO(self.range(entry, 0, entry.n_bytes))
        return io.BufferedReader(_Ranges(self, entry), _BLOCK_BYTES)

    def range(self, entry: FileEntry, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file; RunError if they can't be read."""
        data = self.range_or_all(entry, start, stop)
        return data if len(data) == stop - start else data[start:stop]

    def range_or_all(self, entry: FileEntry, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file, or all of it where the server gives no ranges."""

        def fetch() -> bytes:
            data = self._fetched(entry.name, start, stop)
            if len(data) not in (stop - start, entry.n_bytes):
                raise OSError(f"{len(data)} bytes where {stop - start} were asked for")
            return data

        return self._tried(entry.name, fetch)

    def ranges(self, entry: FileEntry, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several stretches of a file, past the cache; RunError if they can't be read."""
        found: list[bytes] = []
        whole = b""  # where a server gives no ranges, or a command no stretches, they are cut from it
        if self.root.startswith(_PIPE):
            whole = self.range(entry, 0, entry.n_bytes)
        for start, stop in spans:
            data = whole or self.range_or_all(entry, start, stop)
            if len(data) != stop - start:
                whole, data = data, data[start:stop]
            found.append(data)
        return found

    def _fetched(self, name: str, start: int | None, stop: int | None) -> bytes:
        """Bytes of a file, in one try."""
        if self.root.startswith(_PIPE):
            command = self.root.removeprefix(_PIPE).replace("{}", shlex.quote(name))
            # The command is the caller's own, and the names are those that the package gives to files.
            done = subprocess.run(command, shell=True, check=True, capture_output=True)  # noqa: S602
            return done.stdout[start:stop]
        # fsspec keeps one object for equal arguments, so that this is cheap, and safe after a fork.
        try:
            system, root = fsspec.core.url_to_fs(self.root, **self.options)
        except ImportError as error:
            extra = "hf" if self.root.startswith("hf://") else "remote"
            raise RunError(f"{self.root}: {error}, or pip install 'easysteer-data[{extra}]'") from error
        except ValueError as error:  # no such scheme, or an option that it can't have
            raise RunError(f"{self.root}: {error}") from error
        return bytes(system.cat_file(f"{root.rstrip('/')}/{name}", start=start, end=stop))

    def _tried(self, name: str, action: Callable[[], T]) -> T:
        for attempt in range(self.n_tries):
            try:
                return action()
            except FileNotFoundError as error:
                raise BadShardError(f"{self.root}/{name}: missing") from error
            except RunError:
                raise
            except Exception as error:  # every store has its own errors
                if attempt == self.n_tries - 1:
                    raise RunError(
                        f"{self.root}/{name}: can't be read, {self.n_tries} tries, the last: {error}"
                    ) from error
                time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise RunError(f"n_tries must be at least 1, found {self.n_tries}")


def _prefer_obstore() -> None:
    """Have fsspec read object stores by obstore where it is installed."""
    with contextlib.suppress(ImportError):
        from obstore.fsspec import register

        register(["s3", "gs"])


_prefer_obstore()


class _Ranges(io.RawIOBase):
    """A remote file as a stream; a dropped connection loses no more than the block that was being read."""

    def __init__(self, files: RemoteFiles, entry: FileEntry) -> None:
        self._files = files
        self._entry = entry
        self._offset = 0
        self._whole = b""  # kept where the server gives no ranges

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        stop = min(self._offset + len(buffer), self._entry.n_bytes)
        if stop == self._offset:
            return 0
        data = self._whole or self._files.range_or_all(self._entry, self._offset, stop)
        if len(data) != stop - self._offset:
            self._whole, data = data, data[self._offset : stop]
        buffer[: len(data)] = data
        self._offset = stop
        return len(data)
