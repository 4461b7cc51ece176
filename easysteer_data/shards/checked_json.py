"""JSON that is the same bytes for the same value, and JSON of unknown origin, each value checked.

Knows no key of any file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from easysteer_data.errors import RunError


def canonical_json(value: object) -> bytes:
    """One line without spaces, keys sorted, ASCII only."""
    return _dump(value, separators=(",", ":"))


def readable_json(value: object) -> bytes:
    """Indented, keys sorted, ASCII only, with a final newline: for files that people open."""
    return _dump(value, indent=2) + b"\n"


def fingerprint_of(mapping: Mapping[str, object]) -> str:
    """Sha256 (64 hex digits) of the canonical JSON: equal for equal settings, whatever the order of keys."""
    return hashlib.sha256(canonical_json(mapping)).hexdigest()


def _dump(value: object, indent: int | None = None, separators: tuple[str, str] | None = None) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False, indent=indent, separators=separators)
    except (TypeError, ValueError) as error:
        raise RunError(f"a run's records must be plain, finite JSON values: {error}") from error
    return text.encode()


def parse_json(data: bytes, where: str) -> JsonRecord:
    """Read a JSON object.

    Raises:
        RunError: the bytes are no JSON object; the message begins with `where`.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: not readable as JSON ({error})") from error
    return JsonRecord(value, where)


def read_json(path: Path) -> JsonRecord:
    """Read a file that holds one JSON object.

    Raises:
        RunError: there is no such file or it holds no JSON object; the message begins with the file's name,
            the caller knows the folder.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path.name}: can't be read ({error.strerror})") from error
    return parse_json(data, path.name)


class JsonRecord:
    """A JSON object that nobody vouches for.

    Each getter checks the type of what it returns, and raises RunError that names the file and the key.

    Attributes:
        where: the file and the key that hold the object, for messages.
        values: the object as parsed.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise RunError(f"{where} must be a JSON object, found {_short(value)}")
        self.where = where
        self.values: dict[str, object] = value

    def text(self, key: str) -> str:
        """A string."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def count(self, key: str) -> int:
        """An integer >= 0."""
        value = self.values.get(key)
        if not _is_count(value):
            raise self._wrong(key, "an integer >= 0")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(key)
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) != len(values):
            raise self._wrong(key, "a list of texts")
        return texts

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of integers >= 0."""
        values = self._list(key)
        counts = tuple(value for value in values if _is_count(value))
        if len(counts) != len(values):
            raise self._wrong(key, "a list of integers >= 0")
        return counts

    def span(self, key: str) -> tuple[int, int]:
        """A list of two integers >= 0."""
        counts = self.counts(key)
        if len(counts) != 2:
            raise self._wrong(key, "a list of two integers")
        return counts[0], counts[1]

    def spans(self, key: str) -> NDArray[np.int64]:
        """A list of lists of two integers >= 0, as int64 [n, 2]; checked as a whole, for there are many."""
        try:
            spans = np.array(self._list(key))
        except ValueError:  # not rectangular
            raise self._wrong(key, "a list of lists of two integers >= 0") from None
        # Fractions, texts and integers beyond int64 make an array of another dtype.
        if spans.dtype != np.int64 or spans.shape != (len(spans), 2) or spans.min() < 0:
            raise self._wrong(key, "a list of lists of two integers >= 0")
        return spans

    def record(self, key: str) -> JsonRecord:
        """An object."""
        return JsonRecord(self.values.get(key), f"{self.where}: {key}")

    def records(self, key: str) -> tuple[JsonRecord, ...]:
        """A list of objects."""
        values = self._list(key)
        return tuple(JsonRecord(value, f"{self.where}: {key}[{i}]") for i, value in enumerate(values))

    def items(self) -> Iterator[tuple[str, JsonRecord]]:
        """Each key with its value, which must be an object."""
        return ((key, self.record(key)) for key in self.values)

    def _list(self, key: str) -> list[object]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def _wrong(self, key: str, kind: str) -> RunError:
        found = _short(self.values[key]) if key in self.values else "nothing"
        return RunError(f"{self.where}: {key} must be {kind}, found {found}")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
