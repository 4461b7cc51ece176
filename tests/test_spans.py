"""A part of a prompt's text is found among its tokens, whatever the tokenizer and the truncation did."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.row_selection import RowSelection
from easysteer_data.select import SelectSpec
from easysteer_data.spans import Span, find_spans
from easysteer_data.tokens import load_tokenizer, tokenize
from easysteer_data.types import Prompt


@lru_cache
def loaded(model: Path) -> Any:
    return load_tokenizer(str(model))


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return loaded(smollm2)


def prompts_of(tokenizer: Any, *texts: str, fields: dict[str, object] | None = None) -> list[Prompt]:
    prompts = [Prompt(i, f"p{i}", text, f"made:{i + 1}", fields=fields or {}) for i, text in enumerate(texts)]
    return tokenize(prompts, tokenizer, max_model_len=512, max_tokens=1)[0]


def pieces(tokenizer: Any, prompt: Prompt, positions: tuple[int, ...]) -> list[str]:
    return [tokenizer.decode([prompt.token_ids[i]]) for i in positions]


def test_the_letter_of_an_answer_is_found_by_its_pattern(tokenizer: Any) -> None:
    prompts = prompts_of(tokenizer, "Choices:\n (A) yes\n (B) no\n\nAnswer: (B)", "Choose (A) or (B)\n (A)")
    found = list(find_spans(prompts, tokenizer, Span(pattern=r"\(([A-Z])\)", tokens="last")))
    assert [pieces(tokenizer, p, f) for p, f in zip(prompts, found, strict=True)] == [["B"], ["A"]]
    assert found[0][0] == len(prompts[0].token_ids) - 2  # the bracket follows


def test_a_substring_gives_all_its_tokens_and_the_asked_occurrence(tokenizer: Any) -> None:
    (prompt,) = prompts_of(tokenizer, "Paris is nice. The mayor of Paris speaks.")
    last, first = (
        next(find_spans([prompt], tokenizer, Span(substring="of Paris", occurrence=occurrence)))
        for occurrence in ("last", "first")
    )
    assert "".join(pieces(tokenizer, prompt, last)) == " of Paris"
    assert last == first
    one = next(find_spans([prompt], tokenizer, Span(substring="Paris", occurrence="first")))
    assert one == (0,)
    with pytest.raises(CorpusError, match=r"made:1: prompt 'p0' has 'Paris' 2 times"):
        list(find_spans([prompt], tokenizer, Span(substring="Paris", occurrence="only")))


def test_a_substring_can_name_a_field_of_the_prompt(tokenizer: Any) -> None:
    (prompt,) = prompts_of(tokenizer, "Is the sky blue? Yes, it is", fields={"answer": "Yes, it is"})
    found = next(find_spans([prompt], tokenizer, Span(substring="{answer}")))
    assert "".join(pieces(tokenizer, prompt, found)) == " Yes, it is"
    with pytest.raises(CorpusError, match=r"'reply'.*corpus\.fields \(now: answer\)"):
        list(find_spans([prompt], tokenizer, Span(substring="{reply}")))


@settings(max_examples=60, deadline=None)
@given(
    parts=st.tuples(*[st.text(st.sampled_from("ab é😀 .(Ω\n"), min_size=1, max_size=8) for _ in range(3)]),
)
def test_the_found_tokens_are_those_that_cover_the_characters(
    parts: tuple[str, str, str], smollm2: Path
) -> None:
    tokenizer = loaded(smollm2)
    before, middle, _ = parts
    text = "".join(parts)
    prompt = Prompt(0, "p", text, "made:1", token_ids=tuple(tokenizer(text)["input_ids"]))
    span = Span(chars=(len(before), len(before) + len(middle)))
    (found,) = find_spans([prompt], tokenizer, span)
    # Oracle: byte counts of the tokens themselves. Byte-level BPE loses no byte, so they add up to the text.
    lengths = [len(tokenizer.convert_ids_to_tokens([i])[0]) for i in prompt.token_ids]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    first, after = len(before.encode()), len((before + middle).encode())
    covering = [
        i for i, (s, n) in enumerate(zip(starts, lengths, strict=True)) if s < after and s + n > first
    ]
    assert list(found) == covering


def test_truncation_moves_the_span_and_a_cut_span_is_refused(tokenizer: Any) -> None:
    text = "one two three four five six seven eight nine ten"
    whole = prompts_of(tokenizer, text)[0]
    prompt = Prompt(0, "p0", text, "made:1")
    for side, kept_word, lost_word in (("truncate_left", "nine", "two"), ("truncate_right", "two", "nine")):
        (cut,), _ = tokenize([prompt], tokenizer, max_model_len=7, max_tokens=1, over_long=side)  # type: ignore[arg-type]
        assert len(cut.token_ids) < len(whole.token_ids)
        (found,) = find_spans([cut], tokenizer, Span(substring=kept_word))
        assert pieces(tokenizer, cut, found) == [f" {kept_word}"]
        with pytest.raises(CorpusError, match="truncated away"):
            list(find_spans([cut], tokenizer, Span(substring=lost_word)))


def test_what_is_not_there_is_refused_with_the_prompt(tokenizer: Any) -> None:
    (prompt,) = prompts_of(tokenizer, "The end")
    with pytest.raises(CorpusError, match=r"made:1: prompt 'p0' has no 'Paris'.*ends 'The end'"):
        list(find_spans([prompt], tokenizer, Span(substring="Paris")))
    foreign = replace(prompt, token_ids=(5, 6, 7, 8, 9, 10))
    with pytest.raises(CorpusError, match="its tokens are not those of its text"):
        list(find_spans([foreign], tokenizer, Span(substring="end")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of substring, pattern and chars, not none"),
        ({"substring": "a", "pattern": "b"}, "substring and pattern"),
        ({"substring": ""}, "empty"),
        ({"pattern": "("}, r"pattern '\('"),
        ({"substring": "a", "occurrence": "second"}, "choose last, first, only"),
        ({"substring": "a", "tokens": "middle"}, "choose all, first, last"),
    ],
)
def test_unusable_spans_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Span(**options)


def test_the_selections_of_a_span_are_each_prompts_own(tokenizer: Any) -> None:
    prompts = prompts_of(tokenizer, "Oslo is cold.", "It is as cold in Oslo.", "cold cold cold")
    specs = RowSelection(None, Span(substring=" cold")).specs(prompts, tokenizer)
    last = [
        max(i for i, token_id in enumerate(prompt.token_ids) if tokenizer.decode([token_id]) == " cold")
        for prompt in prompts
    ]
    assert [spec.prompt_positions for spec in specs] == [(position,) for position in last]
    assert (len(specs), specs[-1]) == (3, specs[2])
    assert specs[:2] == [specs[0], specs[1]]


def test_a_selection_joins_span_and_positions(tokenizer: Any) -> None:
    (prompt,) = prompts_of(tokenizer, "Paris is nice.")
    selection = RowSelection.from_settings(
        {"prompt_positions": [-1], "span": {"substring": "Paris"}, "reduce": None, "generation": None}
    )
    assert list(selection.specs([prompt], tokenizer)) == [SelectSpec(prompt_positions=[-1, 0])]
    assert RowSelection.from_settings({"prompt": None, "span": {"substring": None}}).to_json() is None
    with pytest.raises(SettingsError, match=r"select\.span\.substrin"):
        RowSelection.from_settings({"span": {"substrin": "x"}})
    with pytest.raises(SettingsError, match=r"select\.reduce"):
        RowSelection.from_settings({"reduce": "max"})
    with pytest.raises(SettingsError, match=r"select\.span\.chars"):
        RowSelection.from_settings({"span": {"chars": [1]}})
