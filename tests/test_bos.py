from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.bos import add_missing_bos, check_bos, encode
from easysteer_data.errors import SettingsError
from tests.words import WORDS, word_tokenizer

BOS_IDS = {"<s>": 0, "<b>": 8}
TOKENIZER = word_tokenizer()


@pytest.mark.parametrize("bos", ["<s>", "<b>"])
def test_text_with_the_bos_that_the_tokenizer_adds_is_refused_by_name(bos: str) -> None:
    tokenizer = word_tokenizer(bos=bos, adds_bos=True)
    with pytest.raises(SettingsError) as raised:
        check_bos(tokenizer, ["hello", f"{bos}hello world", f"{bos}{bos}day"])
    assert str(raised.value).startswith(f"prompt 1 begins with more than one BOS token, '{bos}' (1 other")
    with pytest.raises(SettingsError, match=r"a\.txt:7 begins with"):
        check_bos(tokenizer, ["hello", f"{bos}hello"], names=["a.txt:6", "a.txt:7"])


@pytest.mark.parametrize("bos", ["<s>", "<b>"])
def test_repair_leaves_one_bos_and_warns_once_for_all_prompts(bos: str) -> None:
    tokenizer = word_tokenizer(bos=bos, adds_bos=True)
    with pytest.warns(UserWarning, match="prompt 1 begins with more than one BOS") as caught:
        result = check_bos(tokenizer, ["hello", f"{bos}hello world", f"{bos}{bos}day", "good"], "repair")
    assert len(caught) == 1
    assert result == ["hello", [BOS_IDS[bos], 9, 10], [BOS_IDS[bos], 12], "good"]


def test_keep_changes_nothing_and_is_silent() -> None:
    prompts = ["<s>hello", [0, 0, 9]]
    assert check_bos(word_tokenizer(adds_bos=True), prompts, "keep") == prompts


@pytest.mark.parametrize("policy", ["refuse", "repair", "keep"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "<s>hello"),  # the text's BOS is the only one
        ({"adds_bos": True}, "hello <s>"),  # a BOS further on is the text's own affair
        ({"adds_bos": True}, "hello"),
        ({"bos": None}, "<s><s>hello"),  # no token of this tokenizer is a BOS
    ],
)
def test_text_with_one_bos_or_none_is_left_alone(options: dict[str, Any], text: str, policy: Any) -> None:
    assert check_bos(word_tokenizer(**options), [text], policy) == [text]


def test_text_with_two_of_its_own_counts_where_the_tokenizer_adds_none() -> None:
    with pytest.raises(SettingsError, match="prompt 0 begins with"):
        check_bos(word_tokenizer(), ["<s><s>hello"])


@given(
    n_bos=st.integers(0, 4),
    rest=st.lists(st.integers(1, len(WORDS) - 1), max_size=5).map(lambda ids: [5, *ids]),
)
def test_repaired_ids_are_the_rest_behind_at_most_one_bos(n_bos: int, rest: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = check_bos(TOKENIZER, [[0] * n_bos + rest], "repair")
    assert result == [[0] * min(n_bos, 1) + rest]


def test_an_unknown_policy_is_refused() -> None:
    policy: Any = "drop"
    with pytest.raises(SettingsError, match="'drop' for doubled BOS; choose from refuse, repair, keep"):
        check_bos(TOKENIZER, ["hello"], policy)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"adds_bos": True}, [0, 9]),
        ({"adds_bos": True, "bos": "<b>"}, [8, 9]),
        ({}, [9]),  # a tokenizer that has a BOS and begins no text with it
        ({"bos": None}, [9]),
    ],
)
def test_a_missing_bos_is_added_where_the_tokenizer_begins_its_texts_with_one(
    options: dict[str, Any], expected: list[int]
) -> None:
    tokenizer = word_tokenizer(**options)
    assert add_missing_bos(tokenizer, [9]) == expected
    assert add_missing_bos(tokenizer, expected) == expected


def test_a_tokenizer_that_pads_left_gives_real_tokens_only() -> None:
    tokenizer = word_tokenizer(adds_bos=True, pads_left_to=6)
    assert tokenizer.backend_tokenizer.encode("hello day").ids == [2, 2, 2, 0, 9, 12]
    assert encode(tokenizer, "hello day", add_special_tokens=True) == [0, 9, 12]
    assert encode(tokenizer, "hello day", add_special_tokens=False) == [9, 12]
    with pytest.warns(UserWarning, match="all but one were dropped"):
        assert check_bos(tokenizer, ["<s>hello"], "repair") == [[0, 9]]
