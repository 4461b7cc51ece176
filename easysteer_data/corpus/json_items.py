"""Walks a JSON document of lists item by item, with the line of each; json.loads would not tell the lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\n\r]*")


def list_items(document: str) -> Iterator[tuple[int, str | None, object]]:
    """Yield (1-based line, key, value) of the items of a list, or of each list of an object.

    The key is the list's in the object, None where the document is a list.

    Raises:
        json.JSONDecodeError: the document is not valid, or neither a list nor an object of lists.
    """
    return _Walk(document).items()


class _Walk:
    """A place in a document, always behind white space, and the line that it is on."""

    def __init__(self, document: str) -> None:
        self._document = document
        self._decoder = json.JSONDecoder()
        self._place = 0
        self._line = 1
        self._skip_space(0)

    def items(self) -> Iterator[tuple[int, str | None, object]]:
        if self._document.startswith("{", self._place):
            for _ in self._until("}", begin="{"):
                if not self._document.startswith('"', self._place):
                    raise self._fault("expected a key in double quotes")
                key = self._value()
                self._take(":")
                yield from self._list(str(key))
        else:
            yield from self._list(None)
        if self._place != len(self._document):
            raise self._fault("more text follows the list")

    def _list(self, key: str | None) -> Iterator[tuple[int, str | None, object]]:
        for _ in self._until("]", begin="["):
            line = self._line
            yield line, key, self._value()

    def _until(self, end: str, *, begin: str) -> Iterator[None]:
        """Stop at the start of each item between two marks; the caller takes it before the next stop."""
        self._take(begin)
        more = not self._document.startswith(end, self._place)
        while more:
            yield
            more = not self._document.startswith(end, self._place)
            if more:
                self._take(",")
        self._take(end)

    def _value(self) -> object:
        value, place = self._decoder.raw_decode(self._document, self._place)
        self._skip_space(place)
        return value

    def _take(self, mark: str) -> None:
        if not self._document.startswith(mark, self._place):
            raise self._fault(f"expected {mark!r}")
        self._skip_space(self._place + len(mark))

    def _skip_space(self, place: int) -> None:
        space = _SPACE.match(self._document, place)
        end = space.end() if space else place
        self._line += self._document.count("\n", self._place, end)
        self._place = end

    def _fault(self, message: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(message, self._document, self._place)
