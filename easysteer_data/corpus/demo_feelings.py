"""The built-in corpus `builtin:feelings`: what makes one happy and what makes one sad, in feelings.csv."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from easysteer_data.corpus.readers import read_csv
from easysteer_data.corpus.record import Record

NAME = "builtin:feelings"

_TABLE = Path(__file__).with_name("feelings.csv")


def read_feelings() -> Iterator[Record]:
    """Yield the sentences, a happy one before the sad one that is most like it.

    Columns: text, happy (1 happy, 0 sad), pair (its number). Sources are lines of the table.
    """
    for number, record in enumerate(read_csv(_TABLE)):
        source = f"{NAME}:{record.source.rpartition(':')[2]}"
        columns = {"text": record.text("text"), "happy": int(record.text("happy")), "pair": number // 2}
        yield Record(source, columns)
