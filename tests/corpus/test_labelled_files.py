"""A file a class, and the built-in feelings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.errors import CorpusError


def settings(folder: Path, **options: object) -> CorpusSettings:
    return CorpusSettings(path=str(folder), label_column="key", **options)  # type: ignore[arg-type]


def test_each_file_s_rows_have_its_label(tmp_path: Path) -> None:
    (tmp_path / "glad.json").write_text('["one", "two"]')
    (tmp_path / "low-1.txt").write_text("three\n")
    (tmp_path / "low-2.csv").write_text("text\nfour\n")
    prompts = read_corpus(settings(tmp_path, files={1: "glad.json", 0: "low-*"}))
    assert [(p.text, p.label, p.id) for p in prompts] == [
        ("one", 1, "0"),
        ("two", 1, "1"),
        ("three", 0, "2"),
        ("four", 0, "3"),
    ]
    assert prompts[2].source == f"{tmp_path}/low-1.txt:1"


def test_labels_may_be_text(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}\n")
    prompts = read_corpus(settings(tmp_path, files={"calm": "a.txt", "storm": "b.txt"}))
    assert [prompt.label for prompt in prompts] == ["calm", "storm"]


def test_a_column_of_the_label_s_name_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "key": "mine"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl:1: the row has a 'key' of its own"):
        read_corpus(settings(tmp_path, files={1: "a.jsonl"}))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"none\.json.*there is no such file"):
        read_corpus(settings(tmp_path, files={1: "none.json"}))


def test_the_feelings_are_pairs_of_one_happy_and_one_sad_sentence() -> None:
    prompts = read_corpus(CorpusSettings(path="builtin:feelings", label_column="happy", group_column="pair"))
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 84
    pairs = {prompt.group: {p.label for p in prompts if p.group == prompt.group} for prompt in prompts}
    assert set(map(frozenset, pairs.values())) == {frozenset({0, 1})}
    assert all(n == 2 for n in Counter(prompt.group for prompt in prompts).values())
    assert prompts[1].source == "builtin:feelings:3"
