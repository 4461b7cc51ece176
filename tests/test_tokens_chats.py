"""Chats, given tokens and the BOS of each, on a tokenizer whose ids can be written by hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.tokens import tokenize
from easysteer_data.types import Prompt
from tests.words import WORDS, word_tokenizer

CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = {"role": "user", "content": "hello world"}
ASSISTANT = {"role": "assistant", "content": "good"}


def prompts_of(*texts: str) -> list[Prompt]:
    return [Prompt(index=i, id=f"p{i}", text=text, source=f"a.txt:{i + 1}") for i, text in enumerate(texts)]


def chats_of(*chats: Any) -> list[Prompt]:
    return [replace(p, messages=chat) for p, chat in zip(prompts_of(*"abcd"), chats, strict=False)]


def tokenised(prompts: list[Prompt], tokenizer: Any, **options: Any) -> tuple[list[Prompt], Any]:
    return tokenize(prompts, tokenizer, max_model_len=64, max_tokens=1, **options)


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("writes_bos", [False, True])
def test_a_chat_has_one_bos_whether_template_or_tokenizer_or_both_write_one(
    adds_bos: bool, writes_bos: bool
) -> None:
    template = CHAT if writes_bos else CHAT.removeprefix("{{ bos_token }}")
    tokenizer = word_tokenizer(adds_bos=adds_bos, chat_template=template)
    [prompt], ledger = tokenised(chats_of((USER,)), tokenizer)
    n_bos = int(adds_bos or writes_bos)
    assert prompt.token_ids == (0,) * n_bos + (3, 9, 10, 6, 4)
    assert prompt.text == "<s>" * writes_bos + "[user] hello world [end][assistant]"
    assert (ledger.n_bos, ledger.n_chats) == (n_bos, 1)
    assert ledger.chat_template_sha256 == hashlib.sha256(template.encode()).hexdigest()


def test_many_turns_keep_their_order_and_a_trailing_assistant_turn_is_left_open_to_continue() -> None:
    tokenizer = word_tokenizer(chat_template=CHAT)
    (many, trailing), _ = tokenised(chats_of((USER, ASSISTANT, USER), (USER, ASSISTANT)), tokenizer)
    assert many.token_ids == (0, 3, 9, 10, 6, 4, 11, 6, 3, 9, 10, 6, 4)
    assert trailing.token_ids == (0, 3, 9, 10, 6, 4, 11)
    assert trailing.text == "<s>[user] hello world [end][assistant] good"


def test_chats_texts_and_given_tokens_stand_side_by_side_and_are_counted_apart() -> None:
    tokenizer = word_tokenizer(adds_bos=True, chat_template=CHAT)
    text, chat, given = prompts_of("good day", "[]", "[12, 11]")
    prompts = [text, replace(chat, messages=(USER,)), replace(given, token_ids=(12, 11))] * 700
    ready, ledger = tokenised(prompts, tokenizer)
    assert [prompt.token_ids for prompt in ready[:3]] == [(0, 11, 12), (0, 3, 9, 10, 6, 4), (12, 11)]
    assert ready[3:] == ready[:3] * 699
    assert [prompt.text for prompt in ready[::2][:2]] == ["good day", "day good"]
    assert (ledger.n_prompts, ledger.n_chats, ledger.n_pretokenised, ledger.n_bos) == (2100, 700, 700, 1400)


def test_a_corpus_without_chats_has_no_template_in_its_ledger() -> None:
    _, ledger = tokenised(prompts_of("good"), word_tokenizer(chat_template=CHAT))
    assert (ledger.n_chats, ledger.n_pretokenised, ledger.chat_template_sha256) == (0, 0, None)


def test_a_chat_that_can_not_be_rendered_is_named_by_its_line() -> None:
    chats = chats_of((USER,), ({"role": "user", "content": 5},))
    with pytest.raises(CorpusError, match=r"a\.txt:2: prompt 'p1': message 0 \(user\): content is 5"):
        tokenised(chats, word_tokenizer(chat_template=CHAT))
    with pytest.raises(CorpusError, match=r"a\.txt:1: prompt 'p0': this tokenizer has no chat template"):
        tokenised(chats, word_tokenizer())


@pytest.mark.parametrize("token_id", [-1, len(WORDS)])
def test_a_given_token_beyond_the_vocabulary_is_named_by_its_line(token_id: int) -> None:
    prompts = [
        replace(p, token_ids=ids) for p, ids in zip(prompts_of(*"ab"), [(12, 0), (9, token_id)], strict=True)
    ]
    with pytest.raises(CorpusError) as raised:
        tokenised(prompts, word_tokenizer())
    assert str(raised.value).startswith(
        f"a.txt:2: prompt 'p1' holds the token id {token_id}, but the ids of the model's tokenizer are 0 to "
        f"{len(WORDS) - 1}"
    )


def test_given_tokens_are_run_as_they_are_and_no_bos_is_added() -> None:
    tokenizer = word_tokenizer(adds_bos=True)
    [prompt] = [replace(p, token_ids=(1, 2, 9)) for p in prompts_of("[1, 2, 9]")]
    [ready], ledger = tokenised([prompt], tokenizer)
    assert (ready.token_ids, ready.text, ledger.n_bos) == ((1, 2, 9), "</s> <pad> hello", 0)


def test_a_text_that_is_a_rendered_chat_already_is_refused_repaired_or_kept_by_policy() -> None:
    tokenizer = word_tokenizer(adds_bos=True, chat_template=CHAT)
    rendered = "<s>[user] hello world [end][assistant]"
    prompts = prompts_of("good", rendered, "<s> day")
    with pytest.raises(CorpusError, match=r"a\.txt:2: prompt 'p1' .* corpus\.doubled_bos=repair"):
        tokenised(prompts, tokenizer)
    with pytest.warns(UserWarning, match=r"a\.txt:2: .*\(1 other prompts do as well\); all but one were"):
        repaired, ledger = tokenised(prompts, tokenizer, doubled_bos="repair")
    [chat], _ = tokenised(chats_of((USER,)), tokenizer)
    assert [p.token_ids for p in repaired] == [(0, 11), chat.token_ids, (0, 12)]
    assert [p.text for p in repaired] == [p.text for p in prompts]
    assert (ledger.n_repaired_bos, ledger.n_bos) == (2, 3)
    kept, ledger = tokenised(prompts, tokenizer, doubled_bos="keep")
    assert [p.token_ids[:2] for p in kept] == [(0, 11), (0, 0), (0, 0)]
    assert ledger.n_repaired_bos == 0


def test_an_unknown_bos_policy_is_refused() -> None:
    with pytest.raises(SettingsError, match="doubled_bos is 'drop'; choose one of refuse, repair, keep"):
        tokenised(prompts_of("one"), word_tokenizer(), doubled_bos="drop")


@pytest.mark.parametrize("bos", ["<s>", "<b>", None])
def test_a_bos_of_any_id_or_none_is_counted_right(bos: str | None) -> None:
    _, ledger = tokenised(prompts_of("good", "day day"), word_tokenizer(bos=bos, adds_bos=bos is not None))
    bos_id = None if bos is None else WORDS.index(bos)
    assert (ledger.bos_token_id, ledger.n_bos, ledger.n_tokens) == (
        bos_id,
        0 if bos is None else 2,
        3 + 2 * bool(bos),
    )


def test_a_tokenizer_that_pads_left_gives_real_tokens_alone() -> None:
    ready, ledger = tokenised(prompts_of("good", "good day day"), word_tokenizer(pads_left_to=16))
    assert [prompt.token_ids for prompt in ready] == [(11,), (11, 12, 12)]
    assert (ledger.min_prompt_tokens, ledger.max_prompt_tokens) == (1, 3)


def test_equal_ids_are_one_object_so_that_a_big_corpus_stays_small() -> None:
    tokenizer = word_tokenizer()
    tokenizer.add_tokens([f"w{i}" for i in range(600)])
    ready, _ = tokenised(prompts_of(*["w500"] * 2000), tokenizer)
    assert len({id(prompt.token_ids[0]) for prompt in ready}) == 1
