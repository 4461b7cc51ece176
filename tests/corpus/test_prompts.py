from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.corpus import CorpusSettings, SplitSettings, assign_splits, read_corpus
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Write rows as JSON lines and read them."""

    def read(*rows: Any, **settings: Any) -> list[Prompt]:
        file = tmp_path / "a.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_corpus(CorpusSettings(path=str(file), **settings))

    return read


def refusal(read: Any, *rows: Any, **settings: Any) -> str:
    with pytest.raises(CorpusError) as raised:
        read(*rows, **settings)
    return str(raised.value)


def test_all_columns_that_are_named_are_carried_and_no_other(read: Any) -> None:
    row = {"q": "Why?", "key": 7, "y": True, "city": "Oslo", "part": "test", "a": [1, {"b": None}], "z": 0}
    [prompt] = read(
        row,
        text_column="q",
        id_column="key",
        label_column="y",
        group_column="city",
        split_column="part",
        fields=("a",),
    )
    assert prompt == Prompt(
        index=0,
        id="7",
        text="Why?",
        source=prompt.source,
        label=True,
        group="Oslo",
        split="test",
        fields={"a": [1, {"b": None}]},
    )
    assert prompt.source.endswith("a.jsonl:1")


def test_without_columns_the_id_is_the_row_number_and_the_group_the_exact_text(read: Any) -> None:
    prompts = read("a", "b", "a", "a ")
    assert [(p.index, p.id, p.group, p.label) for p in prompts] == [
        (0, "0", "a", None),
        (1, "1", "b", None),
        (2, "2", "a", None),
        (3, "3", "a ", None),
    ]
    assert prompts == assign_splits(prompts, SplitSettings())
    assert prompts[0].split == prompts[2].split


def test_rows_are_numbered_over_all_files_of_a_glob(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("text\nthree\n")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    prompts = read_corpus(CorpusSettings(path=f"{tmp_path}/*"))
    assert [(p.index, p.id, p.text, p.source) for p in prompts] == [
        (0, "0", "one", f"{tmp_path}/a.txt:1"),
        (1, "1", "two", f"{tmp_path}/a.txt:2"),
        (2, "2", "three", f"{tmp_path}/b.csv:2"),
    ]


def test_a_template_makes_the_prompt_from_columns_of_text_and_whole_numbers(read: Any) -> None:
    [prompt] = read({"question": "Why? ", "answer": " (A)", "n": 3}, template="{n}. {question}\n{answer}")
    assert prompt.text == "3. Why? \n (A)"


def test_the_limit_keeps_the_first_prompts_and_reads_no_further(read: Any) -> None:
    rows = ["", "one", "two", "three", 5]
    prompts = read(*rows, empty_prompts="skip", limit=2)
    assert [(p.index, p.id, p.text) for p in prompts] == [(0, "1", "one"), (1, "2", "two")]


@pytest.mark.parametrize("empty", ["", " ", "\t\n\u3000"])
def test_an_empty_prompt_fails_by_default_and_is_skipped_on_request_with_ids_unchanged(
    read: Any, empty: str
) -> None:
    rows = [empty, "one", empty, "two"]
    message = refusal(read, "zero", *rows)
    assert "a.jsonl:2: the prompt is empty" in message
    assert "corpus.empty_prompts=skip" in message
    prompts = read(*rows, empty_prompts="skip")
    assert [(p.index, p.id, p.text) for p in prompts] == [(0, "1", "one"), (1, "3", "two")]
    assert "a.jsonl: the corpus is empty" in refusal(read, empty, empty_prompts="skip")


def test_a_missing_column_names_the_line_the_columns_there_are_and_the_nearest(read: Any) -> None:
    row = {"statement": "x", "label": 1}
    assert refusal(read, row, text_column="statements").endswith(
        "a.jsonl:1: there is no column 'statements'; the columns are 'statement', 'label'; "
        "did you mean 'statement'?"
    )
    assert refusal(read, row, text_column="examples").endswith("the columns are 'statement', 'label'")
    text = {"text_column": "statement"}
    assert "there is no column 'id'" in refusal(read, row, **text, id_column="id")
    assert "there is no column 'part'" in refusal(read, row, **text, split_column="part")
    assert "there is no column 'answer'" in refusal(read, row, template="{answer}")
    assert "a.jsonl:2: there is no column 'text'" in refusal(read, {"text": "x"}, {"label": 1})


@pytest.mark.parametrize("setting", ["label_column", "group_column", "fields"])
def test_a_column_that_rows_may_lack_must_be_in_one_of_them(read: Any, setting: str) -> None:
    def named(column: str) -> dict[str, Any]:
        return {setting: (column,) if setting == "fields" else column}

    rows = [{"text": "a"}, {"text": "b", "label": "x"}, {"text": "c", "label": None}]
    assert len(read(*rows, **named("label"))) == 3
    message = refusal(read, *rows, **named("labels"))
    assert "there is no column 'labels'; the columns are 'text', 'label'; did you mean 'label'?" in message


def test_a_row_without_label_group_or_field_has_none_its_text_and_none(read: Any) -> None:
    rows = [{"text": "a", "v": "x"}, {"text": "b"}, {"text": "c", "v": None}]
    prompts = read(*rows, label_column="v", group_column="v", fields=("v",))
    assert [(p.label, p.group, p.fields) for p in prompts] == [
        ("x", "x", {"v": "x"}),
        (None, "b", {"v": None}),
        (None, "c", {"v": None}),
    ]


def test_an_empty_csv_cell_is_no_label_and_no_group_but_an_empty_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,v\none,\ntwo,7\n")
    prompts = read_corpus(
        CorpusSettings(path=f"{tmp_path}/a.csv", label_column="v", group_column="v", fields=("v",))
    )
    assert [(p.label, p.group, p.fields["v"]) for p in prompts] == [(None, "one", ""), (7, "7", "7")]


def test_csv_labels_written_as_numbers_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,y,z\none,1,0.5\ntwo,0,1\n")
    path = f"{tmp_path}/a.csv"
    assert [p.label for p in read_corpus(CorpusSettings(path=path, label_column="y"))] == [1, 0]
    assert [p.label for p in read_corpus(CorpusSettings(path=path, label_column="z"))] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"text": 5}, {}, "column 'text' holds a number; it must hold text"),
        ({"text": None}, {}, "column 'text' holds null; it must hold text"),
        ({"text": ["a"]}, {}, "column 'text' holds a list; it must hold text"),
        ({"q": 0.5}, {"template": "{q}"}, "column 'q' holds a decimal number; it must hold text or a whole"),
        ({"q": True}, {"template": "{q}"}, "column 'q' holds true or false; it must hold text or a whole"),
        ({"text": "a", "i": {}}, {"id_column": "i"}, "column 'i' holds an object; it must hold text or a"),
        ({"text": "a", "i": None}, {"id_column": "i"}, "column 'i' holds null; it must hold text or a"),
        ({"text": "a", "i": ""}, {"id_column": "i"}, "the id in column 'i' is empty"),
        ({"text": "a", "g": 1.5}, {"group_column": "g"}, "column 'g' holds a decimal number; it must"),
        ({"text": "a", "y": [1]}, {"label_column": "y"}, "column 'y' holds a list; it must hold text, a"),
        ({"text": "a", "p": "val"}, {"split_column": "p"}, "the split 'val' is not one of train, validation"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_file_and_line(
    read: Any, row: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    good = {"text": "fine", "q": "fine", "i": 1, "g": "fine", "y": 1, "p": "test"}
    assert f"a.jsonl:2: {message}" in refusal(read, good, row, **settings)


def test_a_wrong_split_name_gets_the_nearest_right_one(read: Any) -> None:
    message = refusal(read, {"text": "a", "p": "valid"}, split_column="p")
    assert message.endswith("did you mean 'validation'?")


def test_a_doubled_id_names_both_lines(read: Any, tmp_path: Path) -> None:
    message = refusal(
        read, {"text": "a", "i": 1}, {"text": "b", "i": 2}, {"text": "c", "i": "1"}, id_column="i"
    )
    file = tmp_path / "a.jsonl"
    assert message == f"{file}:3: the id '1' is taken by {file}:1; ids are unique"


def test_labels_of_two_types_are_refused(read: Any) -> None:
    rows = [{"text": "a", "y": 1}, {"text": "b", "y": "1"}]
    assert "a.jsonl:2: the label '1' is of another type than 1" in refusal(read, *rows, label_column="y")


def test_a_given_split_is_kept_unless_it_cuts_a_group(read: Any) -> None:
    rows = [{"text": "a", "p": "test"}, {"text": "b", "p": "train"}, {"text": "a", "p": "test"}]
    assert [prompt.split for prompt in read(*rows, split_column="p")] == ["test", "train", "test"]
    rows[2]["p"] = "validation"
    assert "a.jsonl:3: the split is 'validation', but" in refusal(read, *rows, split_column="p")


def test_split_settings_reach_the_split(read: Any) -> None:
    rows = [f"text {i}" for i in range(10)]
    assert {prompt.split for prompt in read(*rows, splits=SplitSettings(0, 0, 1))} == {"test"}
