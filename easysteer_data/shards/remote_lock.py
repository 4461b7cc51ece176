"""One writer a prefix of an object store: a lock that its owner renews, and others take over when it is old.

Knows who writes, not what.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import canonical_json, parse_json
from easysteer_data.shards.lock import LOCK, owner_of
from easysteer_data.shards.object_store import ObjectStore

RENEW_S = 20.0
STALE_S = 120.0


class RemoteLock:
    """A prefix that this process writes; `acquire` makes one.

    Each renewal replaces exactly the version that this process wrote, so that an owner that was taken for
    dead learns it with its next renewal.
    """

    def __init__(self, store: ObjectStore, version: dict[str, Any], since_s: int) -> None:
        self._store = store
        self._since_s = since_s
        self._version = version
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="easysteer-data-lock", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, store: ObjectStore) -> Self:
        """Lock a prefix.

        Raises:
            RunError: another writer has it; the message names its process, its host and its age. Or the store
                can't put an object on a condition.
        """
        since_s = int(time.time())
        version = store.put_if(LOCK, _owner(since_s), None)
        if version is None:
            found = store.read_version(LOCK)
            if found is not None:
                _refuse_living(store, *found)
                version = store.put_if(LOCK, _owner(since_s), _version(found[1]))
            else:  # let go of in between
                version = store.put_if(LOCK, _owner(since_s), None)
        if version is None:
            raise RunError(f"{store.root} is being written by another process, which has just begun")
        return cls(store, version, since_s)

    def check(self) -> None:
        """Raise if another process has taken the prefix over; nothing more may be written then."""
        if self._lost is not None:
            raise RunError(self._lost)

    def release(self) -> None:
        """Let the prefix go; the second time does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        found = self._store.read_version(LOCK) if self._lost is None else None
        if found is not None and found[1]["e_tag"] == self._version["e_tag"]:
            self._store.remove(LOCK)

    def _renew(self) -> None:
        renewed_s = time.monotonic()
        while not self._ended.wait(RENEW_S):
            try:
                version = self._store.put_if(LOCK, _owner(self._since_s), _version(self._version))
            except RunError as error:
                if time.monotonic() - renewed_s > STALE_S:
                    self._lost = f"{self._store.root}: could not be kept locked: {error}"
                    return
                continue
            if version is None:
                self._lost = (
                    f"{self._store.root}: another process took this process for dead and writes there now"
                )
                return
            self._version, renewed_s = version, time.monotonic()


def _owner(since_s: int) -> bytes:
    """Who writes, in words that no other upload has."""
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since_s": since_s, "upload": uuid4().hex}
    return canonical_json(owner) + b"\n"


def _version(found: dict[str, Any]) -> dict[str, str | None]:
    return {"e_tag": found.get("e_tag"), "version": found.get("version")}


def _refuse_living(store: ObjectStore, data: bytes, found: dict[str, Any]) -> None:
    """Raise unless the owner has not renewed its lock for long, or is a process of this host that is gone."""
    age_s = (datetime.now(UTC) - found["last_modified"]).total_seconds()
    if age_s > STALE_S or _is_gone(data):
        return
    raise RunError(
        f"{store.root} is being written by {owner_of(data)}; wait for it, stop it, or choose another output. "
        f"A writer that was killed is taken for dead {STALE_S:g} s after it last renewed its lock"
    )


def _is_gone(data: bytes) -> bool:
    try:
        owner = parse_json(data, LOCK)
        if owner.text("host") != socket.gethostname():
            return False
        os.kill(owner.count("pid"), 0)
    except ProcessLookupError:
        return True
    except (RunError, OSError, OverflowError):
        return False
    return False
