"""One reader a format: file -> `Record` stream. A new format is a function and a line in `READERS`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from easysteer_data.corpus.files import read_lines
from easysteer_data.corpus.record import Record
from easysteer_data.corpus.settings import Format
from easysteer_data.errors import CorpusError

_LONGEST_FIELD = 2**31 - 1
_as_json = json.JSONEncoder(ensure_ascii=False).encode
_JSON_SPACE = re.compile(r"[ \t\n\r]*")


def read_txt(file: Path) -> Iterator[Record]:
    """One prompt a line, in the column `text`; LF and CRLF end a line and nothing else is removed."""
    for number, line in read_lines(file):
        text = line.removesuffix("\r\n") if line.endswith("\r\n") else line.removesuffix("\n")
        yield Record(f"{file}:{number}", {"text": text})


def read_csv(file: Path) -> Iterator[Record]:
    """Comma-separated with a header, quoted as in RFC 4180; blank lines are no rows."""
    # The csv module's own limit of 128 KiB a cell holds for the whole process and is raised, never lowered.
    csv.field_size_limit(max(_LONGEST_FIELD, csv.field_size_limit()))
    rows = csv.reader((line for _, line in read_lines(file)), strict=True)
    header: list[str] = []
    start = 1
    try:
        for cells in rows:
            source, start = f"{file}:{start}", rows.line_num + 1
            if not cells:
                continue
            if not header:
                header = _checked_header(cells, source)
            elif len(cells) != len(header):
                raise CorpusError(f"{source}: {len(cells)} cells, but the header has {len(header)} columns")
            else:
                yield Record(source, dict(zip(header, cells, strict=True)), typed=False)
    except csv.Error as error:
        raise CorpusError(f"{file}:{start}: not valid CSV: {error}") from error


def read_jsonl(file: Path) -> Iterator[Record]:
    """One JSON object or string a line; blank lines are no rows."""
    for number, line in read_lines(file):
        if line.isspace():
            continue
        source = f"{file}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"{source}: not valid JSON: {error}") from error
        yield _json_record(value, source)


def read_json(file: Path) -> Iterator[Record]:
    """One JSON list of strings or of objects; each is told by the line on which it starts."""
    document = "".join(line for _, line in read_lines(file))
    try:
        for number, value in _list_items(document):
            yield _json_record(value, f"{file}:{number}")
    except json.JSONDecodeError as error:
        hint = " (for one object a line set corpus.format=jsonl)" if document.lstrip()[:1] == "{" else ""
        raise CorpusError(f"{file}:{error.lineno}: not a JSON list: {error.msg}{hint}") from error


READERS: Mapping[Format, Callable[[Path], Iterator[Record]]] = MappingProxyType(
    {"txt": read_txt, "jsonl": read_jsonl, "json": read_json, "csv": read_csv}
)


def _checked_header(cells: list[str], source: str) -> list[str]:
    doubled = sorted({cell for cell in cells if cells.count(cell) > 1})
    if doubled:
        raise CorpusError(f"{source}: the header names a column twice: {', '.join(map(repr, doubled))}")
    return cells


def _list_items(document: str) -> Iterator[tuple[int, object]]:
    """Yield (1-based line, value) of a JSON list's items; json.loads would not tell their lines."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    position = _after("[", document, 0)
    more = not document.startswith("]", position)
    while more:
        line += document.count("\n", counted, position)
        counted = position
        value, position = decoder.raw_decode(document, position)
        yield line, value
        position = _skip_space(document, position)
        more = not document.startswith("]", position)
        if more:
            position = _after(",", document, position)
    position = _after("]", document, position)
    if position != len(document):
        raise json.JSONDecodeError("more text follows the list", document, position)


def _after(mark: str, document: str, position: int) -> int:
    """Return the first non-space position after `mark`, which must be the next non-space text."""
    position = _skip_space(document, position)
    if not document.startswith(mark, position):
        raise json.JSONDecodeError(f"expected {mark!r}", document, position)
    return _skip_space(document, position + len(mark))


def _skip_space(document: str, position: int) -> int:
    space = _JSON_SPACE.match(document, position)
    return space.end() if space else position


def _json_record(value: object, source: str) -> Record:
    try:
        # Half of a surrogate pair is no character: it can't be written as UTF-8 nor tokenised.
        _as_json(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{source}: holds a lone surrogate (\\ud800 to \\udfff)") from error
    if isinstance(value, str):
        return Record(source, {"text": value})
    if isinstance(value, dict):
        return Record(source, value)
    raise CorpusError(f"{source}: each row must be a string or an object, this is {_as_json(value)[:40]}")
