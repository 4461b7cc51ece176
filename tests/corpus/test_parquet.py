from __future__ import annotations

import datetime
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from easysteer_data.corpus import CorpusSettings, corpus_hash, read_corpus
from easysteer_data.corpus.files import format_of
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

TEXTS = [" (A)", "a\r\nb", "caf\u00e9 cafe\u0301 🙂\u200d", "\ufeffmark", "x" * 200_000]


def write(file: Path, columns: dict[str, Any], **options: Any) -> Path:
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    pq.write_table(pa.table(columns), plain, **options)
    if plain != file:
        file.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return file


def read(file: Path, **settings: Any) -> list[Prompt]:
    return read_corpus(CorpusSettings(path=str(file), **settings))


@pytest.mark.parametrize("name", ["a.parquet", "a.PARQUET.gz"])
def test_texts_labels_and_rows_come_back_exactly_over_many_row_groups(tmp_path: Path, name: str) -> None:
    texts = [f"{text} {i}" for i in range(600) for text in TEXTS[:4]] + TEXTS[4:]
    labels = [None if i % 3 == 0 else i % 2 for i in range(len(texts))]
    file = write(tmp_path / name, {"text": texts, "y": labels}, row_group_size=7)
    prompts = read(file, label_column="y")
    assert [prompt.text for prompt in prompts] == texts
    assert [prompt.label for prompt in prompts] == labels
    assert [prompt.source for prompt in prompts] == [f"{file}:{i + 1}" for i in range(len(texts))]


def test_a_parquet_file_reads_as_the_same_rows_in_json(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", {"text": ["a", "b"], "y": [1, 0], "n": [0.5, None]})
    (tmp_path / "a.jsonl").write_text('{"text": "a", "y": 1, "n": 0.5}\n{"text": "b", "y": 0, "n": null}\n')
    settings: dict[str, Any] = {"label_column": "y", "fields": ("n",)}
    hashes = {corpus_hash(read(path, **settings)) for path in (file, tmp_path / "a.jsonl")}
    assert len(hashes) == 1


def test_chats_and_token_ids_are_lists_of_a_column(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "Why?"}
    chats = [[turn], [turn, {"role": "assistant", "content": "So", "name": "x"}]]
    file = write(tmp_path / "a.parquet", {"m": chats, "t": [[1, 2], [3]]})
    assert [prompt.messages for prompt in read(file, messages_column="m")] == [tuple(chat) for chat in chats]
    assert [prompt.token_ids for prompt in read(file, token_ids_column="t")] == [(1, 2), (3,)]


def test_the_format_goes_by_the_suffix() -> None:
    assert format_of(Path("a.parquet")) == format_of(Path("a.parquet.GZ")) == "parquet"


def test_a_missing_column_and_a_wrong_kind_are_told_by_row(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", {"statement": ["a", None], "day": [datetime.date(2020, 1, 2)] * 2})
    with pytest.raises(CorpusError) as raised:
        read(file)
    assert str(raised.value) == (f"{file}:1: there is no column 'text'; the columns are 'statement', 'day'")
    with pytest.raises(CorpusError, match=f"{file}:2: column 'statement' holds null; it must hold text"):
        read(file, text_column="statement")
    with pytest.raises(CorpusError, match=f"{file}:1: column 'day' holds a date; it must hold text"):
        read(file, text_column="day")


def test_a_date_among_the_fields_counts_as_its_text_in_the_corpus_hash(tmp_path: Path) -> None:
    days = [datetime.date(2020, 1, day) for day in (1, 2)]
    hashes = {
        corpus_hash(read(write(tmp_path / "a.parquet", {"text": ["a"], "day": [day]}), fields=("day",)))
        for day in days
    }
    assert len(hashes) == 2


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", {"text": TEXTS}).read_bytes()
    for name, content in {
        "b.parquet": b"no parquet at all",
        "c.parquet": whole[:-20],
        "d.parquet": b"",
        "e.parquet.gz": gzip.compress(whole)[:-20],
        "f.parquet.gz": b"no gzip",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=f"{tmp_path / name}: can't be read after row 0"):
            read(tmp_path / name)
    binary = write(tmp_path / "g.parquet", {"text": pa.array([b"ok", b"\xff"], pa.binary())})
    with pytest.raises(CorpusError, match="column 'text' holds a bytes; it must hold text"):
        read(binary)
    broken = write(
        tmp_path / "h.parquet", {"text": pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())}
    )
    with pytest.raises(CorpusError, match=f"{broken}: can't be read after row"):
        read(broken)
