from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import corpus_hash
from easysteer_data.types import Prompt

unhurried = settings(deadline=None)

BASE = Prompt(index=0, id="a", text="b", source="x:1", label=1, group="g", split="train", fields={"k": "v"})

prompts = st.builds(
    Prompt,
    index=st.just(0),
    id=st.text(max_size=3),
    text=st.text(max_size=3),
    source=st.just("x:1"),
    label=st.none() | st.text(max_size=2) | st.integers(0, 1) | st.booleans() | st.floats(0, 1),
    group=st.none() | st.text(max_size=2),
    split=st.sampled_from(["train", "test"]),
    fields=st.dictionaries(
        st.text(max_size=2), st.none() | st.integers(0, 1) | st.text(max_size=2), max_size=2
    ),
)


def test_every_part_that_matters_changes_the_hash() -> None:
    changes: list[dict[str, Any]] = [
        {"id": "c"},
        {"text": "b "},
        {"text": "b\n"},
        {"label": "1"},
        {"label": True},
        {"label": 1.0},
        {"label": None},
        {"group": None},
        {"group": "b"},
        {"split": "test"},
        {"fields": {"k": "w"}},
        {"fields": {"j": "v"}},
        {"fields": {}},
        {"token_ids": (1, 2)},
        {"token_ids": (1, 2, 3)},
    ]
    variants = [
        [],
        [BASE],
        [BASE, BASE],
        *([replace(BASE, **change)] for change in changes),
    ]
    hashes = [corpus_hash(variant) for variant in variants]
    assert len(set(hashes)) == len(variants)


def test_file_place_and_the_order_of_fields_change_nothing() -> None:
    moved = replace(BASE, index=7, source="/elsewhere/y:9")
    assert corpus_hash([moved]) == corpus_hash([BASE])
    one, other = ({"k": 1, "l": 2}, {"l": 2, "k": 1})
    assert corpus_hash([replace(BASE, fields=one)]) == corpus_hash([replace(BASE, fields=other)])


def test_the_order_of_prompts_matters() -> None:
    corpus = [replace(BASE, id=str(i)) for i in range(3)]
    hashes = {corpus_hash(order) for order in itertools.permutations(corpus)}
    assert len(hashes) == 6


@unhurried
@given(st.lists(prompts, max_size=3), st.lists(prompts, max_size=3))
def test_two_corpora_have_one_hash_only_if_they_are_equal(one: list[Prompt], other: list[Prompt]) -> None:
    def content(corpus: list[Prompt]) -> str:
        return repr([(p.id, p.text, p.label, p.group, p.split, sorted(p.fields.items())) for p in corpus])

    assert (corpus_hash(one) == corpus_hash(other)) == (content(one) == content(other))


def test_the_hash_is_the_sha256_of_one_json_line_a_prompt() -> None:
    corpus = [replace(BASE, token_ids=(5, 0)), replace(BASE, text='é"\n', label=0.5, fields={})]
    document = (
        "easysteer-data corpus 2\n"
        '["a", "b", [5, 0], 1, "g", "train", {"k": "v"}]\n'
        '["a", "\\u00e9\\"\\n", [], 0.5, "g", "train", {}]\n'
    )
    assert corpus_hash(corpus) == hashlib.sha256(document.encode()).hexdigest()
