from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

unhurried = settings(deadline=None)

characters = st.characters(codec="utf-8")
texts = st.lists(
    st.text(characters, min_size=1).filter(lambda text: not text.isspace()), min_size=1, max_size=8
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def read(file: Path, content: str | bytes, **settings: Any) -> list[Prompt]:
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return read_corpus(CorpusSettings(path=str(file), **settings))


def as_csv(rows: list[list[str]], **dialect: Any) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, **dialect).writerows(rows)
    return file.getvalue()


def lines_of(prompts: list[Prompt]) -> list[int]:
    return [int(prompt.source.rpartition(":")[2]) for prompt in prompts]


@unhurried
@given(texts)
def test_json_texts_come_back_exactly_as_another_writer_wrote_them(folder: Path, rows: list[str]) -> None:
    for escaped in (True, False):
        lines = "".join(json.dumps({"text": row}, ensure_ascii=escaped) + "\n" for row in rows)
        assert [prompt.text for prompt in read(folder / "a.jsonl", lines)] == rows
        listed = json.dumps(rows, ensure_ascii=escaped, indent=2)
        assert [prompt.text for prompt in read(folder / "a.json", listed)] == rows


@unhurried
@given(texts, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
def test_csv_texts_come_back_exactly_as_another_writer_wrote_them(
    folder: Path, rows: list[str], end: str, mark: str
) -> None:
    table = [["id", "text"], *([f"row {i}", row] for i, row in enumerate(rows))]
    content = mark + as_csv(table, lineterminator=end, quoting=csv.QUOTE_ALL)
    for name in ("a.csv", "a.csv.gz"):
        prompts = read(folder / name, content, id_column="id")
        assert [prompt.text for prompt in prompts] == rows
        assert [prompt.id for prompt in prompts] == [f"row {i}" for i in range(len(rows))]


@unhurried
@given(texts, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(["", "\ufeff"]))
def test_plain_text_lines_come_back_exactly(
    folder: Path, rows: list[str], end: str, ended: bool, mark: str
) -> None:
    rows = [row.replace("\n", " ").strip("\r") + "." for row in rows]
    content = mark + end.join(rows) + (end if ended else "")
    prompts = read(folder / "a.txt", content)
    assert [prompt.text for prompt in prompts] == rows
    assert lines_of(prompts) == list(range(1, len(rows) + 1))


def test_spaces_at_both_ends_and_forms_of_one_letter_are_kept(folder: Path) -> None:
    rows = [" (A)", "tail \t", "caf\u00e9", "cafe\u0301", "\ufb01", "🙂\u200d", "a\u2028b"]
    assert [prompt.text for prompt in read(folder / "a.txt", "\n".join(rows))] == rows


def test_a_csv_record_is_told_by_the_line_on_which_it_starts(folder: Path) -> None:
    content = 'text,label\r\n"one\r\ntwo",1\r\n\r\nthree,0\r\n"fo,ur\n\n",1\r\nfive,0\r\n'
    prompts = read(folder / "a.csv", content, label_column="label")
    assert [prompt.text for prompt in prompts] == ["one\r\ntwo", "three", "fo,ur\n\n", "five"]
    assert lines_of(prompts) == [2, 5, 6, 9]
    assert [prompt.label for prompt in prompts] == [1, 0, 1, 0]


def test_a_json_item_is_told_by_the_line_on_which_it_starts(folder: Path) -> None:
    content = '\n[\n  "one",\n  {"text":\n    "two"}\n  , "three"\n,\n\n"four"]\n'
    prompts = read(folder / "a.json", content)
    assert [prompt.text for prompt in prompts] == ["one", "two", "three", "four"]
    assert lines_of(prompts) == [3, 4, 6, 9]


def test_lists_of_an_object_are_read_one_after_the_other_and_their_keys_are_a_column(folder: Path) -> None:
    content = '{"adult": [],\n "child" : [\n"a zoo", {"text": "a slide", "age": 7}] , "any":\n[ "a park"] }'
    prompts = read(folder / "a.json", content, label_column="key", fields=("age",))
    assert [(p.id, p.text, p.label, p.fields["age"]) for p in prompts] == [
        ("0", "a zoo", "child", None),
        ("1", "a slide", "child", 7),
        ("2", "a park", "any", None),
    ]
    assert lines_of(prompts) == [3, 3, 4]


def test_blank_lines_of_jsonl_are_no_rows_and_keep_the_line_numbers(folder: Path) -> None:
    prompts = read(folder / "a.jsonl", '\n{"text": "one"}\r\n  \n"two"\n\n')
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("0", "one"), ("1", "two")]
    assert lines_of(prompts) == [2, 4]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.json"])
def test_a_line_of_a_million_characters_is_read(folder: Path, name: str) -> None:
    text = "long " * 200_000
    content = {
        "a.txt": text,
        "a.csv": f'text\n"{text}"\n',
        "a.jsonl": json.dumps({"text": text}),
        "a.json": json.dumps([text]),
    }
    assert [prompt.text for prompt in read(folder / name, content[name])] == [text]


@pytest.mark.parametrize(
    ("name", "content", "line", "message"),
    [
        ("a.csv", 'text,label\none,1\n"open,1\nmore,0\n', 3, "not valid CSV"),
        ("a.csv", 'text\n"a"b\n', 2, "not valid CSV"),
        ("a.csv", "text\na\rb\n", 2, "not valid CSV"),
        ("a.csv", "text,label\n\none,1\ntwo\n", 4, "1 cells, but the header has 2 columns"),
        ("a.csv", "text,label\none, two,1\n", 2, "3 cells, but the header has 2 columns"),
        ("a.csv", "text,label,text\none,1,x\n", 1, "the header names a column twice: 'text'"),
        ("a.jsonl", '{"text": "one"}\n{"text": "two"\n', 2, "not valid JSON"),
        ("a.jsonl", '{"text": "one"}\n[1]\n', 2, "each row must be a string or an object, this is [1]"),
        ("a.json", '["one",\n"two"\n"three"]', 3, "not a JSON list: expected ','"),
        ("a.json", '["one",\n]', 2, "not a JSON list"),
        ("a.json", '["one"\n', 2, "not a JSON list"),
        ("a.json", '["one"]\n["two"]', 2, "not a JSON list: more text follows the list"),
        ("a.json", '["one",\nnull]', 2, "each row must be a string or an object, this is null"),
        (
            "a.json",
            '{"text":\n"x"}\n{"text": "y"}',
            2,
            "not a JSON list: expected '[' (for one object a line",
        ),
        ("a.json", '{"a": ["x"],\n"b": ["y"]', 2, "not a JSON list: expected ',' (for one object a line"),
        ("a.json", '{"a": ["x"],\n7: ["y"]}', 2, "not a JSON list: expected a key in double quotes"),
        (
            "a.json",
            '{"a":\n[{"key": 1}]}',
            2,
            "the object has a 'key' of its own beside that of its list, 'a'",
        ),
        ("a.json", '{"a": ["x"], "\\udc00":\n["y"]}', 2, "holds a lone surrogate"),
        ("a.json", "", 1, "not a JSON list"),
        ("a.jsonl", '"fine"\n"\\ud83d\\ude42"\n{"text": "x", "k": ["\\ud83d"]}', 3, "holds a lone surrogate"),
        ("a.json", '["fine",\n\n"\\udc00"]', 3, "holds a lone surrogate"),
    ],
)
def test_a_broken_file_is_refused_by_file_and_line(
    folder: Path, name: str, content: str, line: int, message: str
) -> None:
    with pytest.raises(CorpusError) as raised:
        read(folder / name, content)
    assert str(raised.value).startswith(f"{folder / name}:{line}: {message}")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", ""), ("a.csv", ""), ("a.csv", "text,label\n"), ("a.jsonl", "\n\n"), ("a.json", " [ ] ")],
)
def test_a_corpus_without_prompts_is_refused(folder: Path, name: str, content: str) -> None:
    with pytest.raises(CorpusError, match=f"{folder / name}: the corpus is empty"):
        read(folder / name, content)
