"""Objects under a URL such as s3://bucket/run: put with a check of what arrived, read, listed, removed.

Knows names and bytes, no run. The client is obstore, the extra [remote].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from easysteer_data.errors import RunError

T = TypeVar("T")

_PART_BYTES = 16 * 2**20  # S3 takes 10,000 parts: 160 GB a file
_FIRST_WAIT_S = 0.5
_N_TRIES = 7  # with obstore's own retries inside each, a store that is away for a minute is waited for


def is_url(out: object) -> bool:
    """Whether an output is a URL, as text, and no folder."""
    return isinstance(out, str) and "://" in out


@dataclass(frozen=True)
class ObjectStore:
    """A prefix of an object store.

    Attributes:
        root: its URL.
        options: of obstore's store, e.g. `{"region": "eu-west-1"}`.
    """

    root: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _store(self) -> Any:
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise RunError(f"{self.root}: {error}; pip install 'easysteer-data[remote]'") from error
        options = dict(self.options)
        if self.root.startswith("s3://"):
            # The server refuses a part whose bytes are not those that were sent.
            options.setdefault("checksum_algorithm", "SHA256")
        try:
            return from_url(self.root, **options)
        except Exception as error:  # obstore has no common base for wrong options
            raise RunError(f"{self.root}: no usable object store ({error})") from error

    def put_file(self, name: str, path: Path, n_bytes: int) -> None:
        """Upload a file, in parts where it is large, and check that the store has it.

        Raises:
            RunError: it could not be uploaded, or the store then has another size or version of it.
        """
        self._tried(name, "written", lambda: self._put(name, path, n_bytes))

    def put(self, name: str, data: bytes) -> None:
        """Upload a small object and check that the store has it; RunError if it can't be."""
        self._tried(name, "written", lambda: self._put(name, data, len(data)))

    def put_if(
        self, name: str, data: bytes, version: Mapping[str, str | None] | None
    ) -> dict[str, Any] | None:
        """Upload an object if what is there is still of this version, None = if nothing is there.

        Args:
            name: the object.
            data: its contents, of which no other upload may have the same.
            version: e_tag and version as far as the store has them.

        Returns:
            The version that is there now, None if another one was.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put() -> dict[str, Any] | None:
            import obstore

            known = {key: value for key, value in (version or {}).items() if value is not None}
            mode: Any = known or "create"
            try:
                return dict(obstore.put(self._store, name, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError):
                found = self.read_version(name)
                # The answer to an earlier try may have been lost on the way.
                return found[1] if found is not None and found[0] == data else None

        return self._tried(name, "written", put)

    def read(self, name: str) -> bytes | None:
        """All of a small object, None where there is none."""
        found = self.read_version(name)
        return None if found is None else found[0]

    def read_version(self, name: str) -> tuple[bytes, dict[str, Any]] | None:
        """All of a small object and its version (e_tag, version, last_modified), None where there is none."""
        import obstore

        def read() -> tuple[bytes, dict[str, Any]] | None:
            try:
                found = obstore.get(self._store, name)
            except FileNotFoundError:
                return None
            return bytes(found.bytes()), dict(found.meta)

        return self._tried(name, "read", read)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Name -> bytes of every object under a prefix."""
        import obstore

        def listed() -> dict[str, int]:
            batches = obstore.list(self._store, prefix or None)
            return {str(one["path"]): int(one["size"]) for batch in batches for one in batch}

        return self._tried(prefix or ".", "listed", listed)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        import obstore

        def remove() -> None:
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                return

        self._tried(name, "removed", remove)

    def move(self, name: str, to: str, n_bytes: int) -> None:
        """Have the store copy an object to another name, check that it has it, and remove the first.

        Raises:
            RunError: it could not be copied, as an object of over 5 GB can't on S3.
        """
        import obstore

        def copy() -> None:
            obstore.copy(self._store, name, to)
            there = obstore.head(self._store, to)
            if there["size"] != n_bytes:
                raise OSError(f"the store has {there['size']} bytes of {n_bytes}")

        self._tried(name, f"copied to {to}", copy)
        self.remove(name)

    def _put(self, name: str, what: Path | bytes, n_bytes: int) -> None:
        import obstore

        put = obstore.put(self._store, name, what, chunk_size=_PART_BYTES)
        there = obstore.head(self._store, name)
        if there["size"] != n_bytes or there["e_tag"] != put["e_tag"]:
            raise OSError(
                f"{n_bytes} bytes were sent as version {put['e_tag']}, the store has {there['size']} bytes "
                f"of version {there['e_tag']}"
            )

    def _tried(self, name: str, done: str, action: Callable[[], T]) -> T:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        for attempt in range(_N_TRIES):
            try:
                return action()
            except RunError:
                raise
            except Exception as error:  # every store has its own errors
                hopeless = isinstance(error, PermissionDeniedError | UnauthenticatedError)
                if hopeless or attempt == _N_TRIES - 1:
                    raise RunError(
                        f"{self.root}/{name}: can't be {done}, {attempt + 1} tries, the last: {error}. "
                        "Finished shards are kept; capture again with the same settings to continue"
                    ) from error
                time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise RunError(f"{self.root}/{name}: was not tried")
