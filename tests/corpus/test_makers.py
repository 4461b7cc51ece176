"""What a row makes: pairs, questions, chats and token ids, read from JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.corpus import CorpusSettings, corpus_hash, read_corpus
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

PAIR = {"positive_column": "good", "negative_column": "bad"}
QUESTION = {**PAIR, "question_column": "q"}
USER = {"role": "user", "content": "Why?"}
ASSISTANT = {"role": "assistant", "content": "Since"}


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


def test_a_pair_makes_two_prompts_of_one_group_and_line(read: Any, tmp_path: Path) -> None:
    row = {"good": " yes ", "bad": "no", "key": "k", "city": "Oslo"}
    prompts = read(row, **PAIR, id_column="key", fields=("city",))
    common: dict[str, Any] = {"source": f"{tmp_path}/a.jsonl:1", "group": "k", "fields": {"city": "Oslo"}}
    common["split"] = prompts[0].split
    assert prompts == [
        Prompt(index=0, id="k-positive", text=" yes ", label=1, **common),
        Prompt(index=1, id="k-negative", text="no", label=0, **common),
    ]


def test_a_template_goes_around_the_text_of_each_side_and_may_use_columns(read: Any) -> None:
    row = {"good": "{n}", "bad": "no", "n": 3, "text": "unused"}
    prompts = read(row, **PAIR, template="{n}. {text}\n")
    assert [prompt.text for prompt in prompts] == ["3. {n}\n", "3. no\n"]


def test_the_sides_have_other_labels_on_request(read: Any) -> None:
    prompts = read({"good": "a", "bad": "b"}, **PAIR, pair_labels=("happy", "sad"))
    assert [prompt.label for prompt in prompts] == ["happy", "sad"]


def test_pairs_that_share_a_text_are_one_group_and_a_named_group_is_kept(read: Any) -> None:
    rows = [{"good": a, "bad": b, "city": a} for a, b in ("uv", "wx", "xu", "yz")]
    assert [prompt.group for prompt in read(*rows, **PAIR)[::2]] == ["0", "0", "0", "3"]
    named = read(*rows, **PAIR, group_column="city")
    assert [prompt.group for prompt in named[::2]] == ["u", "w", "x", "y"]


def test_a_pair_file_of_a_row_a_side_is_grouped_by_the_pairs_id(read: Any) -> None:
    rows = [{"text": f"t{i}", "pair": i // 2, "y": i % 2} for i in range(40)]
    prompts = read(*rows, group_column="pair", label_column="y")
    assert all(a.split == b.split for a, b in zip(prompts[::2], prompts[1::2], strict=True))


def test_the_limit_counts_rows_so_that_no_pair_is_cut(read: Any) -> None:
    rows = [{"good": f"g{i}", "bad": f"b{i}"} for i in range(5)]
    assert [prompt.id for prompt in read(*rows, **PAIR, limit=2)] == [
        "0-positive",
        "0-negative",
        "1-positive",
        "1-negative",
    ]


@pytest.mark.parametrize("settings", [PAIR, QUESTION])
def test_a_pair_with_an_empty_side_fails_or_is_left_out_whole(read: Any, settings: dict[str, Any]) -> None:
    rows = [{"q": "Q", "good": "a", "bad": " "}, {"q": "Q", "good": "b", "bad": "c"}]
    assert "a.jsonl:1: the prompt is empty" in refusal(read, *rows, **settings)
    kept = read(*rows, **settings, empty_prompts="skip")
    assert [prompt.id for prompt in kept] == ["1-positive", "1-negative"]


@pytest.mark.parametrize(
    ("question", "answer", "separator", "text"),
    [
        ("Q?", "(A)", None, "Q? (A)"),
        ("Q?", " (A)", None, "Q? (A)"),
        ("Q?\n", "(A)", None, "Q?\n(A)"),
        ("Q? ", " (A)", None, "Q?  (A)"),
        ("Q?", " (A)", "\n\nAnswer:", "Q?\n\nAnswer: (A)"),
        ("Q?", "(A)", "", "Q?(A)"),
    ],
)
def test_question_and_answer_are_joined_exactly_and_a_space_is_put_only_where_there_is_none(
    read: Any, question: str, answer: str, separator: str | None, text: str
) -> None:
    row = {"q": question, "good": answer, "bad": "(B)"}
    positive, negative = read(row, **QUESTION, answer_separator=separator)
    assert positive.text == text
    assert positive.fields == {"answer": answer, "letter": "A"}
    assert (negative.fields["letter"], negative.label, negative.group) == ("B", 0, question)


def test_questions_asked_twice_are_one_group(read: Any) -> None:
    rows = [{"q": "Q?", "good": "(A)", "bad": "(B)"}, {"q": "Q?", "good": "(B)", "bad": "(A)"}]
    assert len({(prompt.group, prompt.split) for prompt in read(*rows, **QUESTION)}) == 1


def test_in_a_chat_the_question_is_the_users_turn_and_the_answer_the_assistants(read: Any) -> None:
    row = {"q": "Why?", "good": " (A)", "bad": "(B)"}
    positive, negative = read(row, **QUESTION, chat=True, system="Be brief.")
    assert positive.messages == (
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": " (A)"},
    )
    assert negative.messages is not None
    assert negative.messages[-1]["content"] == "(B)"


def test_texts_and_sides_become_a_users_turn(read: Any) -> None:
    [prompt] = read("Why?", chat=True)
    assert prompt.messages == (USER,)
    sides = read({"good": "a", "bad": "b"}, **PAIR, chat=True, template="Say {text}")
    assert [side.messages for side in sides] == [
        ({"role": "user", "content": "Say a"},),
        ({"role": "user", "content": "Say b"},),
    ]
    assert "the prompt is empty" in refusal(read, " ", chat=True)


def test_a_chat_is_read_as_it_stands_and_nulls_of_a_column_store_are_left_out(read: Any) -> None:
    turns = [{**USER, "tool_calls": None}, ASSISTANT]
    prompts = read({"messages": turns}, {"messages": [USER]}, messages_column="messages")
    assert [prompt.messages for prompt in prompts] == [(USER, ASSISTANT), (USER,)]
    assert [json.loads(prompt.text) for prompt in prompts] == [[USER, ASSISTANT], [USER]]
    assert prompts[0].group == prompts[0].text


def test_a_system_turn_begins_each_chat_that_has_none(read: Any) -> None:
    system = {"role": "system", "content": "Be kind."}
    settings = {"messages_column": "m", "system": "Be kind."}
    [prompt] = read({"m": [USER]}, **settings)
    assert prompt.messages == (system, USER)
    message = refusal(read, {"m": [USER]}, {"m": [system, USER]}, **settings)
    assert message.endswith(
        "a.jsonl:2: the chat begins with a system turn of its own; take corpus.system out"
    )


def test_equal_chats_are_one_group_whatever_the_order_of_their_keys(read: Any) -> None:
    turned = dict(reversed(USER.items()))
    prompts = read({"m": [USER]}, {"m": [turned]}, {"m": [USER, ASSISTANT]}, messages_column="m")
    assert len({prompt.group for prompt in prompts}) == 2
    assert len(read(*({"m": [m]} for m in (USER, turned)), messages_column="m", duplicates="first")) == 1


def test_token_ids_are_kept_as_they_are(read: Any) -> None:
    prompts = read({"t": [5, 0, 5]}, {"t": []}, {"t": [7]}, token_ids_column="t", empty_prompts="skip")
    assert [(prompt.id, prompt.token_ids) for prompt in prompts] == [("0", (5, 0, 5)), ("2", (7,))]
    others = read({"t": [5, 0, 6]}, {"t": [7]}, token_ids_column="t")
    assert corpus_hash(prompts) != corpus_hash(others)


@pytest.mark.parametrize(
    ("value", "column", "message"),
    [
        ("Why?", "messages_column", "column 'c' holds text; it must hold a list of {'role'"),
        (["Why?"], "messages_column", "column 'c' holds a list; it must hold a list of {'role'"),
        ([1, True], "token_ids_column", "column 'c' holds a list; it must hold a list of token ids"),
        ([1, 2.0], "token_ids_column", "column 'c' holds a list; it must hold a list of token ids"),
        ("1 2", "token_ids_column", "column 'c' holds text; it must hold a list of token ids"),
    ],
)
def test_a_column_that_holds_neither_a_chat_nor_tokens_is_refused_by_line(
    read: Any, value: Any, column: str, message: str
) -> None:
    good = [USER] if column == "messages_column" else [1]
    assert f"a.jsonl:2: {message}" in refusal(read, {"c": good}, {"c": value}, **{column: "c"})


def test_a_missing_side_names_the_columns_there_are(read: Any) -> None:
    message = refusal(read, {"good": "a", "worse": "b"}, **PAIR)
    assert message.endswith("a.jsonl:1: there is no column 'bad'; the columns are 'good', 'worse'")


def test_of_rows_with_the_same_text_and_label_the_first_is_kept_on_request_with_ids_unchanged(
    read: Any,
) -> None:
    rows = [{"text": text, "y": y} for text, y in (("a", 0), ("b", 0), ("a", 1), ("a", 0), ("a ", 0))]
    kept = read(*rows, label_column="y", duplicates="first")
    assert [(p.index, p.id, p.text, p.label) for p in kept] == [
        (0, "0", "a", 0),
        (1, "1", "b", 0),
        (2, "2", "a", 1),
        (3, "4", "a ", 0),
    ]
    assert len({prompt.split for prompt in kept if prompt.text == "a"}) == 1
    pairs = [{"good": a, "bad": b} for a, b in ("uv", "uw", "uv")]
    assert [p.id for p in read(*pairs, **PAIR, duplicates="first")[::2]] == ["0-positive", "1-positive"]
