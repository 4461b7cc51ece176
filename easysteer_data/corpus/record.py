"""One row of a corpus before it is a prompt. Knows its columns and its line, not what they are for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from easysteer_data.errors import CorpusError
from easysteer_data.types import Label, Split

_KINDS = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    float: "a decimal number",
    int: "a number",
    str: "text",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A row as the file has it.

    Attributes:
        source: `file:line`, 1-based, the line on which the row starts; `file:row` where there are no lines.
        columns: column -> value; text, number, bool, None, list or dict; from Parquet and Hugging Face data
            sets also dates and others.
        typed: False where the format knows text alone (CSV), so that "1" may be meant as a number
            and an empty cell as no value.
        split: that of the file it is in; "train" until the corpus' rows are shared out.
    """

    source: str
    columns: Mapping[str, object]
    typed: bool = True
    split: Split = "train"

    def value(self, column: str) -> object:
        """Return a column's value; CorpusError where the row lacks the column."""
        if column not in self.columns:
            raise missing_column(self.source, column, self.columns)
        return self.columns[column]

    def given(self, column: str | None) -> object | None:
        """Return a column's value, None where it is not asked for, absent, null or an empty CSV cell."""
        value = None if column is None else self.columns.get(column)
        return None if value == "" and not self.typed else value

    def text(self, column: str) -> str:
        """Return a column that must hold text."""
        value = self.value(column)
        if not isinstance(value, str):
            raise self._unfit(column, value, "text")
        return value

    def name(self, column: str) -> str:
        """Return a column that must hold text or a whole number, as text."""
        value = self.value(column)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._unfit(column, value, "text or a whole number")
        return str(value)

    def label(self, column: str | None) -> Label | None:
        """Return the label, None where the row has none."""
        if column is None or (value := self.given(column)) is None:
            return None
        if not isinstance(value, str | int | float | bool):
            raise self._unfit(column, value, "text, a number, true or false")
        return value

    def messages(self, column: str) -> tuple[Mapping[str, object], ...]:
        """Return a column that must hold a list of messages; a message's keys that are null are left out.

        Arrow, below Parquet and Hugging Face data sets, gives all messages the keys of any one of them.
        """
        value = self.value(column)
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            raise self._unfit(column, value, "a list of {'role': ..., 'content': ...} messages")
        return tuple({key: part for key, part in message.items() if part is not None} for message in value)

    def token_ids(self, column: str) -> tuple[int, ...]:
        """Return a column that must hold a list of whole numbers."""
        value = self.value(column)
        if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
            raise self._unfit(column, value, "a list of token ids, which are whole numbers")
        return tuple(value)

    def fault(self, message: str) -> CorpusError:
        """Return the error that says where the row is."""
        return CorpusError(f"{self.source}: {message}")

    def _unfit(self, column: str, value: object, needed: str) -> CorpusError:
        kind = _KINDS.get(type(value), f"a {type(value).__name__}")
        return self.fault(f"column {column!r} holds {kind}; it must hold {needed}")


def missing_column(source: str, column: str, columns: Collection[str]) -> CorpusError:
    """Return the error that lists the columns there are, the most alike first."""
    nearest = difflib.get_close_matches(column, columns, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    listed = ", ".join(repr(name) for name in columns)
    return CorpusError(f"{source}: there is no column {column!r}; the columns are {listed}{hint}")
