from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import corpus_report
from easysteer_data.types import SPLITS, Prompt

unhurried = settings(deadline=None)


def prompts_of(*rows: tuple[str, Any, Any]) -> list[Prompt]:
    return [
        Prompt(index=i, id=str(i), text=text, source=f"rows:{i + 1}", label=label, group=text, split=split)
        for i, (text, label, split) in enumerate(rows)
    ]


CORPUS = prompts_of(
    ("a", 1, "train"),
    ("b", 1, "train"),
    ("b", 1, "train"),
    ("c", 0, "train"),
    ("c", 1, "validation"),
    ("d", None, "test"),
    ("c", 0, "train"),
)


def test_counts_duplicates_conflicts_and_leaks_of_a_corpus_known_by_hand() -> None:
    report = corpus_report(CORPUS, skipped=["7", "8"])
    assert report.n_prompts == {"train": 5, "validation": 1, "test": 1}
    assert report.n_groups["test"] == 1
    assert report.labels == {
        "0": {"train": 2, "validation": 0, "test": 0},
        "1": {"train": 3, "validation": 1, "test": 0},
        "none": {"train": 0, "validation": 0, "test": 1},
    }
    assert (report.n_repeated, report.n_duplicates, report.n_conflicts, report.n_leaks) == (2, 3, 1, 1)
    conflict, repeat = report.repeated
    assert (conflict.text, conflict.n_prompts, conflict.splits) == ("c", 3, ("train", "validation"))
    assert conflict.places == {"0": "rows:4", "1": "rows:5"}
    assert (repeat.text, repeat.n_prompts, repeat.places) == ("b", 2, {"1": "rows:2"})
    assert (report.token_lengths, report.n_truncated, report.skipped) == ({}, 0, ("7", "8"))


def test_lengths_are_counted_in_ranges_that_double_and_cut_prompts_are_counted() -> None:
    lengths = [1, 2, 3, 4, 7, 16, 17, 31]
    tokenised = [replace(CORPUS[0], token_ids=(0,) * n) for n in lengths]
    tokenised[-1] = replace(tokenised[-1], fields={"over_long": "truncate_left: 1 of 32 tokens cut"})
    report = corpus_report(tokenised)
    assert report.token_lengths == {(1, 2): 1, (2, 4): 2, (4, 8): 2, (8, 16): 0, (16, 32): 3}
    assert report.n_truncated == 1


@unhurried
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([None, 0, 1]), st.sampled_from(SPLITS)),
        min_size=1,
        max_size=25,
    )
)
def test_counts_equal_those_of_sets(rows: list[tuple[str, Any, Any]]) -> None:
    report = corpus_report(prompts_of(*rows))
    texts = Counter(text for text, _, _ in rows)
    assert report.n_duplicates == len(rows) - len(texts)
    assert report.n_repeated == sum(n > 1 for n in texts.values())
    assert report.n_conflicts == sum(len({row[1] for row in rows if row[0] == text}) > 1 for text in texts)
    assert report.n_leaks == sum(len({row[2] for row in rows if row[0] == text}) > 1 for text in texts)
    assert sum(sum(counts.values()) for counts in report.labels.values()) == len(rows)


def test_the_table_names_conflicts_by_their_first_lines_and_shows_balance_and_lengths() -> None:
    tokenised = [replace(prompt, token_ids=(0,) * 5) for prompt in CORPUS]
    table = corpus_report(tokenised, skipped=["long"]).table()
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[0] == "train validation test all"
    assert "prompts 5 1 1 7" in lines
    assert "label 1 3 1 0 4" in lines
    assert (
        "2 texts are there more than once (3 duplicates), 1 with different labels, 1 in more than one split"
        in (lines)
    )
    assert "'c': 0 at rows:4, 1 at rows:5; in train, validation" in lines
    assert f"4 to 7 tokens 7 {'#' * 40}" in lines
    assert lines[-1] == "1 prompts did not fit the model's window and were left out: long"


def test_a_report_is_plain_json_and_names_a_limited_number_of_texts() -> None:
    many = prompts_of(*[(f"{i % 50}" * 99, 0, "train") for i in range(100)])
    report = corpus_report([replace(prompt, token_ids=(1, 2)) for prompt in many])
    values = json.loads(json.dumps(report.to_json()))
    assert (values["n_repeated"], len(values["repeated"])) == (50, 20)
    assert max(len(text["text"]) for text in values["repeated"]) == 60
    assert values["token_lengths"] == [[2, 4, 100]]
