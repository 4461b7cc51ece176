"""Public corpora of other projects, each read with the one line of config that shared_data.py gives."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.corpus import corpus_report, label_classes, read_corpus
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt
from tests.corpus.shared_data import CONFIGS, settings_for, shared_folder

QUESTIONS = [name for name in CONFIGS if name.startswith(("caa/", "evals/"))]
CSV = {
    "truthfulqa/TruthfulQA.csv": "Question",
    "representation-engineering/facts_true_false.csv": "statement",
}
LISTS = [name for name in CONFIGS if name.startswith("representation-engineering") and name not in CSV]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory.mktemp("shared"))


def prompts_of(folder: Path, name: str) -> list[Prompt]:
    return read_corpus(settings_for(folder, name))


def loaded(folder: Path, name: str) -> Any:
    """The rows by the standard library's own readers."""
    text = (folder / name).read_text(encoding="utf-8-sig")
    if name.endswith(".csv"):
        with (folder / name).open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    return list(map(json.loads, text.splitlines())) if name.endswith("l") else json.loads(text)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_public_corpus_is_read_with_one_line_and_no_group_is_in_two_splits(
    folder: Path, name: str
) -> None:
    prompts = prompts_of(folder, name)
    assert [prompt.index for prompt in prompts] == list(range(len(prompts)))
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({(p.group, p.split) for p in prompts}) == len({p.group for p in prompts})
    assert corpus_report(prompts).n_leaks == 0


def test_a_corpus_without_a_line_is_none_that_the_folder_has(folder: Path) -> None:
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.[jc]*") if path.is_file()}
    assert there == set(CONFIGS)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_prompts_of_a_question_are_the_question_and_each_answer_as_the_file_has_it(
    folder: Path, name: str
) -> None:
    rows = loaded(folder, name)
    prompts = prompts_of(folder, name)
    if "balance_letters" not in str(CONFIGS[name]):
        assert len(prompts) == 2 * len(rows)
    for positive, negative in zip(prompts[::2], prompts[1::2], strict=True):
        row = rows[int(positive.id.removesuffix("-positive"))]
        right, wrong = row["answer_matching_behavior"], row["answer_not_matching_behavior"]
        # The files of CAA lack the space that those of anthropics/evals have: each gets exactly one.
        space = "" if right[0] == " " else " "
        assert (positive.text, negative.text) == (
            f"{row['question']}{space}{right}",
            f"{row['question']}{space}{wrong}",
        )
        assert (positive.label, negative.label) == (1, 0)
        assert positive.group == negative.group == row["question"]
        assert positive.fields == {"answer": right, "letter": right.strip(" ()")}
        assert negative.fields == {"answer": wrong, "letter": wrong.strip(" ()")}


@pytest.mark.parametrize("name", QUESTIONS[:2])
def test_balanced_questions_have_each_letter_as_often_for_the_matching_answer_and_drop_no_more_than_needed(
    folder: Path, name: str
) -> None:
    before = Counter(row["answer_matching_behavior"] for row in loaded(folder, name))
    after = Counter(prompt.fields["letter"] for prompt in prompts_of(folder, name) if prompt.label == 1)
    assert after == dict.fromkeys("AB", min(before.values()))


@pytest.mark.parametrize("name", CSV)
def test_texts_of_a_csv_are_those_of_the_standard_reader(folder: Path, name: str) -> None:
    rows = loaded(folder, name)
    assert [prompt.text for prompt in prompts_of(folder, name)] == [row[CSV[name]] for row in rows]


def test_true_and_false_facts_have_two_classes_and_doubled_statements_are_counted(folder: Path) -> None:
    name = "representation-engineering/facts_true_false.csv"
    prompts = prompts_of(folder, name)
    assert label_classes(prompts) == ("classes", ("0", "1"))
    statements = Counter(row["statement"] for row in loaded(folder, name))
    report = corpus_report(prompts)
    assert report.n_duplicates == len(prompts) - len(statements) > 0
    assert report.n_repeated == sum(count > 1 for count in statements.values())


@pytest.mark.parametrize("name", LISTS)
def test_a_bare_list_keeps_the_place_of_each_item_as_its_id_and_skips_the_empty_one(
    folder: Path, name: str
) -> None:
    expected = [(str(i), item) for i, item in enumerate(loaded(folder, name)) if item]
    assert [(prompt.id, prompt.text) for prompt in prompts_of(folder, name)] == expected


def test_an_empty_item_fails_by_line_where_it_is_not_to_be_skipped(folder: Path) -> None:
    name = "representation-engineering/all_truncated_outputs.json"
    with pytest.raises(CorpusError, match=f"{folder / name}:2: the prompt is empty"):
        read_corpus(type(settings_for(folder, name))(path=str(folder / name)))


def test_the_sides_of_pairs_are_labelled_and_kept_together(folder: Path) -> None:
    name = "easysteer/creative_writing__contrastive_pairs.json"
    rows = loaded(folder, name)
    expected = [
        (f"{i}-{side}", row[column], label, str(i))
        for i, row in enumerate(rows)
        for side, column, label in (("positive", "creative", 1), ("negative", "mundane", 0))
    ]
    assert [(p.id, p.text, p.label, p.group) for p in prompts_of(folder, name)] == expected


def test_answers_without_letters_follow_their_question_after_a_space(folder: Path) -> None:
    name = "easysteer/improve_reasoning__reasoning_pairs.json"
    rows = loaded(folder, name)
    prompts = prompts_of(folder, name)
    assert [p.text for p in prompts[::2]] == [f"{row['question']} {row['sound']}" for row in rows]
    assert [p.fields for p in prompts[1::2]] == [{"answer": row["flawed"], "letter": None} for row in rows]


def test_lists_of_an_object_are_labelled_by_their_keys(folder: Path) -> None:
    name = "easysteer/steerable_chatbot__style_examples.json"
    expected = [(item, key) for key, items in loaded(folder, name).items() for item in items]
    assert [(prompt.text, prompt.label) for prompt in prompts_of(folder, name)] == expected


def test_emoji_with_joiners_come_through(folder: Path) -> None:
    name = "easysteer/loreft__training_examples.json"
    emoji = [prompt.fields["emoji"] for prompt in prompts_of(folder, name)]
    assert emoji == [row["emoji"] for row in loaded(folder, name)]
    assert any("\u200d" in str(text) for text in emoji)


def test_look_alikes_are_read_with_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSTEER_SHARED_DATA", str(tmp_path / "nowhere"))
    made = shared_folder(tmp_path)
    assert made == tmp_path
    assert {name: len(prompts_of(made, name)) for name in CONFIGS if name.startswith("caa/")} == {
        name: 16 if "generate" in name else 24 for name in CONFIGS if name.startswith("caa/")
    }
    for name in CONFIGS:
        assert prompts_of(made, name)
