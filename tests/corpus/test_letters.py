from __future__ import annotations

import hashlib
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus.letters import balance_letters, letter_of
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

unhurried = settings(deadline=None)


def questions(*letters: tuple[str | None, str | None]) -> list[Prompt]:
    return [
        Prompt(
            index=2 * i + k,
            id=f"{i}-{side}",
            text=f"Q{i} {answers[k]}",
            source=f"rows:{i + 1}",
            label=1 - k,
            fields={"answer": answers[k], "letter": answers[k]},
        )
        for i, answers in enumerate(letters)
        for k, side in enumerate(("positive", "negative"))
    ]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("(A)", "A"),
        (" (B)", "B"),
        ("\n(C) since it is so", "C"),
        ("D", "D"),
        ("E. None", "E"),
        ("B) Yes", "B"),
        ("A: yes", "A"),
        ("A cat", None),
        ("Yes", None),
        ("(yes)", None),
        ("(a)", None),
        ("", None),
    ],
)
def test_the_letter_is_the_capital_that_an_answer_begins_with(answer: str, letter: str | None) -> None:
    assert letter_of(answer) == letter


@unhurried
@given(st.lists(st.sampled_from(list(permutations("ABC", 2))), min_size=1, max_size=30), st.integers(0, 3))
def test_any_two_letters_match_equally_often_and_no_smaller_number_is_dropped(
    letters: list[tuple[str, str]], seed: int
) -> None:
    counts = Counter(letters)
    expected = {pair: min(n, counts[pair[::-1]]) for pair, n in counts.items() if counts[pair[::-1]]}
    prompts = questions(*letters)
    if not expected:
        with pytest.raises(CorpusError, match="rows:1: no question is left"):
            balance_letters(prompts, seed)
        return
    kept = balance_letters(prompts, seed)
    pairs = list(zip(kept[::2], kept[1::2], strict=True))
    assert Counter((a.fields["letter"], b.fields["letter"]) for a, b in pairs) == expected
    assert [prompt.index for prompt in kept] == list(range(len(kept)))
    ids = [prompt.id for prompt in prompts]
    assert [prompt.id for prompt in kept] == sorted((prompt.id for prompt in kept), key=ids.index)


def test_those_first_in_the_order_of_the_hashes_of_seed_and_id_stay() -> None:
    prompts = questions(*[("A", "B")] * 20, *[("B", "A")] * 4)
    ids = [f"{i}-positive" for i in range(20)]
    first = sorted(ids, key=lambda name: hashlib.sha256(b"7\x00" + name.encode()).hexdigest())[:4]
    kept = balance_letters(prompts, 7)
    assert {prompt.id for prompt in kept if prompt.fields["letter"] == "A" and prompt.label} == set(first)
    assert balance_letters(prompts, 7) == kept != balance_letters(prompts, 8)


@pytest.mark.parametrize("letters", [("A", None), (None, "B"), ("A", "A")])
def test_answers_that_can_not_be_balanced_are_refused_by_line(letters: tuple[str | None, str | None]) -> None:
    with pytest.raises(CorpusError) as raised:
        balance_letters(questions(("A", "B"), letters), 0)
    assert str(raised.value).startswith(
        f"rows:2: the answers {letters[0]!r} and {letters[1]!r} do not begin with two letters, as (A) and (B)"
    )
