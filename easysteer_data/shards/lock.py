"""One writer a folder: a lock that the operating system lets go of when its owner ends, however it ends.

Knows who writes and since when, not what. Readers never look at it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import canonical_json, parse_json

LOCK = ".lock"
_MAX_OWNER_BYTES = 4096


class FolderLock:
    """A folder that this process writes; `acquire` makes one, once at a time over all processes.

    The file `.lock` in the folder is locked with flock(2), so that a killed process leaves it unlocked. What
    is in the file is for people.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def acquire(cls, folder: Path) -> Self:
        """Lock a folder.

        Raises:
            RunError: another writer has it; the message names its process, its host and its age. Or the
                folder can't be written, or its file system can't lock.
        """
        path = folder / LOCK
        try:
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                _lock(descriptor, folder)
                if _is_at(descriptor, path):
                    break
                os.close(descriptor)  # an owner removed this file between our two calls
        except OSError as error:
            raise RunError(f"{folder}: can't be locked for writing ({error.strerror})") from error
        lock = cls(path, descriptor)
        try:
            _write_owner(descriptor)
        except OSError:  # a full disk: the lock holds without a name in it
            os.ftruncate(descriptor, 0)
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the folder go, and remove the lock file; the second time does nothing."""
        if self._descriptor is None:
            return
        self._path.unlink(missing_ok=True)  # while it is locked: nobody else can have taken this name
        self._drop()

    def _drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _drop_in_fork() -> None:
    """A forked process, such as an engine's, shares its parent's lock and must not keep it beyond that."""
    for lock in [*_held]:
        lock._drop()


os.register_at_fork(after_in_child=_drop_in_fork)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock an open file, or close it and raise."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = owner_of(os.pread(descriptor, _MAX_OWNER_BYTES, 0))
        os.close(descriptor)
        raise RunError(
            f"{folder} is being written by {owner}; wait for it, stop it, or choose another output folder"
        ) from None
    except OSError:
        os.close(descriptor)
        raise


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since_s": int(time.time())}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, canonical_json(owner) + b"\n", 0)


def owner_of(data: bytes) -> str:
    """The owner in words, as far as the file tells: it is empty for a moment after it was locked."""
    try:
        record = parse_json(data, LOCK)
        pid, host, since_s = record.count("pid"), record.text("host"), record.count("since_s")
        since = datetime.fromtimestamp(since_s, UTC)
    except (RunError, OverflowError, ValueError, OSError):
        return "another process, which has just begun"
    age = _duration(max(0, int(time.time()) - since_s))
    return f"process {pid} on {host} since {since:%Y-%m-%d %H:%M:%S} UTC ({age} ago)"


def _duration(n_s: int) -> str:
    """Seconds in the two largest units that matter to people."""
    minutes, seconds = divmod(n_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
