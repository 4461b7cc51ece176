"""One reader a format of text: file -> `Record` stream. Knows lines, not what columns are for."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from easysteer_data.corpus.files import read_lines
from easysteer_data.corpus.json_items import list_items
from easysteer_data.corpus.record import Record
from easysteer_data.errors import CorpusError

_LONGEST_FIELD = 2**31 - 1
# The column that holds the key of the list that an item is in, and of the file that a row is in.
KEY = "key"

_as_json = json.JSONEncoder(ensure_ascii=False).encode


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
    """One JSON list of strings or of objects, or an object of such lists, by whose keys `key` is a column.

    Each item is told by the line on which it starts.
    """
    document = "".join(line for _, line in read_lines(file))
    try:
        for number, key, value in list_items(document):
            yield _json_record(value, f"{file}:{number}", key)
    except json.JSONDecodeError as error:
        hint = " (for one object a line set corpus.format=jsonl)" if document.lstrip()[:1] == "{" else ""
        raise CorpusError(f"{file}:{error.lineno}: not a JSON list: {error.msg}{hint}") from error


def _checked_header(cells: list[str], source: str) -> list[str]:
    doubled = sorted({cell for cell in cells if cells.count(cell) > 1})
    if doubled:
        raise CorpusError(f"{source}: the header names a column twice: {', '.join(map(repr, doubled))}")
    return cells


def _json_record(value: object, source: str, key: str | None = None) -> Record:
    try:
        # Half of a surrogate pair is no character: it can't be written as UTF-8 nor tokenised.
        _as_json([key, value]).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{source}: holds a lone surrogate (\\ud800 to \\udfff)") from error
    columns = {"text": value} if isinstance(value, str) else value
    if not isinstance(columns, dict):
        raise CorpusError(f"{source}: each row must be a string or an object, this is {_as_json(value)[:40]}")
    if key is None:
        return Record(source, columns)
    if KEY in columns:
        raise CorpusError(f"{source}: the object has a {KEY!r} of its own beside that of its list, {key!r}")
    return Record(source, {KEY: key, **columns})
