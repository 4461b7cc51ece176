from __future__ import annotations

from typing import Any

import pytest

from easysteer_data.chat import render_chat
from easysteer_data.errors import SettingsError
from tests.words import word_tokenizer

TURN = "[{{ m['role'] }}] {{ m['content'] }} [end]"
HEADER = "{% if add_generation_prompt %}[assistant]{% endif %}"
BARE = "{% for m in messages %}" + TURN + "{% endfor %}" + HEADER
WITH_BOS = "{{ bos_token }}" + BARE
# Loops over parts: of a text it would see characters, and show none of them.
PARTS_ONLY = (
    "{% for m in messages %}[{{ m['role'] }}]{% for part in m['content'] %}{% if part['type'] == 'text' %}"
    " {{ part['text'] }}{% endif %}{% endfor %} [end]{% endfor %}" + HEADER
)
# Marks which form it was given.
BOTH = (
    "{% for m in messages %}{% if m['content'] is string %}[user] {{ m['content'] }}{% else %}[system]"
    "{% for part in m['content'] %} {{ part['text'] }}{% endfor %}{% endif %}{% endfor %}"
)
# Adds texts up: a list can't be added to one.
TEXT_ONLY = "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + ' [end]' }}{% endfor %}"

USER = {"role": "user", "content": "hello world"}
ASSISTANT = {"role": "assistant", "content": "good"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "day"}]}


def test_a_chat_is_its_turns_and_the_header_of_a_new_one() -> None:
    prompt = render_chat(word_tokenizer(chat_template=WITH_BOS), [USER])
    assert prompt["prompt"] == "<s>[user] hello world [end][assistant]"
    assert prompt["prompt_token_ids"] == [0, 3, 9, 10, 6, 4]


def test_a_chat_of_many_turns_keeps_their_order() -> None:
    messages = [{"role": "system", "content": "day"}, USER, ASSISTANT, USER]
    prompt = render_chat(word_tokenizer(chat_template=WITH_BOS), messages)
    assert prompt["prompt_token_ids"] == [0, 5, 12, 6, 3, 9, 10, 6, 4, 11, 6, 3, 9, 10, 6, 4]


def test_a_finished_chat_ends_where_its_last_turn_ends() -> None:
    tokenizer = word_tokenizer(chat_template=WITH_BOS)
    prompt = render_chat(tokenizer, [USER, ASSISTANT], add_generation_prompt=False)
    assert prompt["prompt_token_ids"] == [0, 3, 9, 10, 6, 4, 11, 6]


@pytest.mark.parametrize("content", ["good", "good day", [{"type": "text", "text": "good"}]])
def test_a_trailing_assistant_turn_stays_open_to_be_continued(content: Any) -> None:
    prompt = render_chat(
        word_tokenizer(chat_template=WITH_BOS),
        [USER, {"role": "assistant", "content": content}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    expected = [0, 3, 9, 10, 6, 4, 11]
    assert prompt["prompt_token_ids"] == ([*expected, 12] if content == "good day" else expected)


@pytest.mark.parametrize("bos", ["<s>", "<b>"])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("template", [BARE, WITH_BOS])
def test_there_is_one_bos_whether_the_template_writes_it_or_the_tokenizer_adds_it(
    bos: str, adds_bos: bool, template: str
) -> None:
    tokenizer = word_tokenizer(bos=bos, adds_bos=adds_bos, chat_template=template)
    token_ids = render_chat(tokenizer, [USER])["prompt_token_ids"]
    has_bos = adds_bos or template == WITH_BOS
    assert token_ids == [*([{"<s>": 0, "<b>": 8}[bos]] if has_bos else []), 3, 9, 10, 6, 4]


def test_a_tokenizer_without_bos_gets_none() -> None:
    tokenizer = word_tokenizer(bos=None, chat_template=WITH_BOS)
    assert render_chat(tokenizer, [USER])["prompt_token_ids"] == [3, 9, 10, 6, 4]


def test_a_tokenizer_that_pads_left_never_pads_a_chat() -> None:
    tokenizer = word_tokenizer(adds_bos=True, chat_template=BARE, pads_left_to=32)
    assert render_chat(tokenizer, [USER])["prompt_token_ids"] == [0, 3, 9, 10, 6, 4]


def test_a_template_that_writes_two_bos_is_refused() -> None:
    tokenizer = word_tokenizer(chat_template="{{ bos_token }}" + WITH_BOS)
    with pytest.raises(SettingsError, match="begins with two BOS tokens, '<s>'"):
        render_chat(tokenizer, [USER])


def test_another_template_takes_the_place_of_the_tokenizers_own() -> None:
    for own in (None, WITH_BOS):
        prompt = render_chat(word_tokenizer(chat_template=own), [USER], chat_template=BARE)
        assert prompt["prompt_token_ids"] == [3, 9, 10, 6, 4]


@pytest.mark.parametrize("template", [PARTS_ONLY, TEXT_ONLY, WITH_BOS])
@pytest.mark.parametrize("message", [USER, PARTS])
def test_texts_and_lists_of_parts_are_shown_by_templates_of_either_kind(
    template: str, message: dict[str, Any]
) -> None:
    tokenizer = word_tokenizer(chat_template=template)
    prompt = render_chat(tokenizer, [message], add_generation_prompt=False)
    words = [9, 10] if message is USER else [9, 12]
    assert prompt["prompt_token_ids"] == [*([0] if template == WITH_BOS else []), 3, *words, 6]
    assert "type" not in prompt["prompt"]


def test_a_template_that_shows_either_form_gets_the_one_that_was_given() -> None:
    tokenizer = word_tokenizer(chat_template=BOTH)
    assert render_chat(tokenizer, [USER])["prompt"] == "[user] hello world"
    assert render_chat(tokenizer, [PARTS])["prompt"] == "[system] hello day"


def test_parts_are_joined_by_newlines_where_the_template_takes_texts() -> None:
    prompt = render_chat(word_tokenizer(chat_template=TEXT_ONLY), [PARTS])
    assert prompt["prompt"] == "[user] hello\nday [end]"


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good"}]
    before = repr(messages)
    tokenizer = word_tokenizer(chat_template=PARTS_ONLY)
    render_chat(tokenizer, messages, add_generation_prompt=False, continue_final_message=True)
    assert repr(messages) == before


def test_a_tokenizer_without_a_template_is_named_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match="no chat template; give one as `chat_template=`"):
        render_chat(word_tokenizer(), [USER])


def test_the_two_ways_to_end_a_chat_exclude_each_other() -> None:
    tokenizer = word_tokenizer(chat_template=BARE)
    with pytest.raises(SettingsError, match="pass add_generation_prompt=False"):
        render_chat(tokenizer, [USER, ASSISTANT], continue_final_message=True)


def test_a_users_turn_can_not_be_continued() -> None:
    tokenizer = word_tokenizer(chat_template=BARE)
    with pytest.raises(SettingsError, match="the last message is the user's"):
        render_chat(tokenizer, [USER], add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages"),
        (["hello"], "message 0 has no role"),
        ([USER, {"content": "hello"}], "message 1 has no role"),
        ([{"role": "user"}], r"message 0 \(user\): content is None"),
        ([{"role": "user", "content": []}], r"message 0 \(user\): content is \[\]"),
        ([{"role": "user", "content": 3}], "content is 3"),
        ([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}], "content part 'image' is not"),
        ([{"role": "user", "content": ["hello"]}], "content part 'hello' is not text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part holds no text"),
    ],
)
def test_messages_that_hold_no_text_are_refused_by_number(messages: list[Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        render_chat(word_tokenizer(chat_template=BARE), messages)


def test_what_a_template_says_against_the_messages_is_passed_on() -> None:
    template = (
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no system turn, please') }}{% endif %}"
    )
    tokenizer = word_tokenizer(chat_template=template + BARE)
    assert render_chat(tokenizer, [USER])["prompt_token_ids"] == [3, 9, 10, 6, 4]
    with pytest.raises(SettingsError, match="can't render these messages: no system turn, please"):
        render_chat(tokenizer, [{"role": "system", "content": "day"}, USER])


def test_a_template_that_shows_no_message_is_refused() -> None:
    with pytest.raises(SettingsError, match="shows no content"):
        render_chat(word_tokenizer(chat_template="hello"), [USER])
