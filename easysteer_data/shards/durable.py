"""Files that appear whole or not at all, and folders that remember them. Knows nothing of runs."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_PARTIAL = ".partial"


class DurableFile:
    """A file written under a temporary name; leaving the `with` block puts it on disk under its own name.

    The temporary name is hidden and has another suffix, so that no `*.tar` pattern finds it. An exception in
    the block removes the file; a killed process leaves it to `remove_partial_files`. Where no block fits:
    `open`, `write`, `sync`, and `keep`; or `discard` at any time.

    Attributes:
        n_bytes: bytes written so far.

    Args:
        path: its own name.
        hashed: hash what is written; without it there is no `sha256`.
    """

    def __init__(self, path: Path, *, hashed: bool = True) -> None:
        self._path = path
        self._partial = partial_name(path)
        self._file: io.FileIO | None = None
        self._digest = hashlib.sha256() if hashed else None
        self.n_bytes = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard_after(error)
            return
        try:
            self.sync()
            self.keep()
        except BaseException as failed:  # a full disk may show only here
            self._discard_after(failed)
            raise

    def _discard_after(self, error: BaseException) -> None:
        """Remove it; that it can't be removed either is noted in the error."""
        try:
            self.discard()
        except OSError as failed:
            error.add_note(f"{self._partial} could not be removed: {failed}")

    def open(self) -> None:
        """Begin it."""
        # Unbuffered: the pieces are tensors of megabytes, a buffer would only copy them.
        self._file = self._partial.open("wb", buffering=0)

    def sync(self) -> None:
        """Put what was written on disk; nothing more can be."""
        with self._opened as file:
            os.fsync(file.fileno())

    def keep(self) -> None:
        """Give it its own name."""
        self._partial.replace(self._path)
        self._file = None
        sync_folder(self._path.parent)

    def discard(self) -> None:
        """Remove it, unless it has its own name."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            finally:
                self._partial.unlink(missing_ok=True)

    @property
    def _opened(self) -> io.FileIO:
        if self._file is None:
            raise ValueError(f"{self._path} is not open")
        return self._file

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; a memoryview must be one of bytes (format "B")."""
        file = self._opened
        if self._digest is not None:
            self._digest.update(data)
        rest = memoryview(data)
        self.n_bytes += len(rest)
        while rest:  # one system call takes at most 2 GiB
            rest = rest[file.write(rest) :]

    @property
    def sha256(self) -> str:
        """Hex digest of what was written so far."""
        if self._digest is None:
            raise ValueError(f"{self._path} is written without a hash")
        return self._digest.hexdigest()


def write_durably(path: Path, data: bytes) -> DurableFile:
    """Write a whole file; the returned record has its `n_bytes` and `sha256`."""
    with DurableFile(path) as file:
        file.write(data)
    return file


def append_durably(path: Path, data: bytes) -> None:
    """Append and put it on disk; a full disk leaves the file as it was, a crash perhaps a part of `data`."""
    with path.open("ab", buffering=0) as file:
        n_before = file.seek(0, os.SEEK_END)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(n_before)
            raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and put each new one on disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk: a rename is not durable before its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_name(path: Path) -> Path:
    """The temporary name of a file."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def is_partial(path: Path) -> bool:
    """Whether a path is the temporary name of a file that was never finished."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def remove_partial_files(folder: Path) -> None:
    """Remove what a killed writer left anywhere under a folder."""
    for path in sorted(folder.rglob(f".*{_PARTIAL}")):
        path.unlink()
