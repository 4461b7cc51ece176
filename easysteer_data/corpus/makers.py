"""Makes prompts from a row: its text, its chat, its tokens, the sides of a pair, the answers to a question.

Knows columns and settings; no files, and no other rows. A new shape is a function and a line in `_MAKERS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from easysteer_data.corpus.letters import letter_of
from easysteer_data.corpus.record import Record
from easysteer_data.corpus.settings import CorpusSettings
from easysteer_data.corpus.shape import ANSWER, LETTER, SIDE, Shape
from easysteer_data.corpus.template import Template
from easysteer_data.types import Label

Messages = tuple[Mapping[str, object], ...]

_as_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Draft:
    """A prompt before it has an index, an id and a split.

    Attributes:
        text: the exact text; of chats and tokens their JSON, until the tokenizer turns them into text.
        blank: no characters, or white space alone, in what the row gives.
        group: what ties it to others where no column does; None = the row.
        label: its label where the shape and no column gives it.
        side: "positive" or "negative" of a pair.
        fields: what the shape tells beside the columns.
        messages: the chat, as `Prompt.messages`.
        token_ids: the tokens that the row gives.
    """

    text: str
    blank: bool
    group: str | None = None
    label: Label | None = None
    side: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    messages: Messages | None = None
    token_ids: tuple[int, ...] = ()


def maker_of(settings: CorpusSettings) -> Callable[[Record], list[Draft]]:
    """Return the function that makes a row's prompts; it raises CorpusError, naming the row's source."""
    make = _MAKERS[settings.shape]
    template = None if settings.template is None else Template.parse(settings.template)
    return lambda record: make(settings, template, record)


def _from_text(settings: CorpusSettings, template: Template | None, record: Record) -> list[Draft]:
    text = record.text(settings.text_column) if template is None else template.render(record.name)
    blank = _is_blank(text)
    if not settings.chat:
        return [Draft(text, blank, group=text)]
    messages = _turns(settings.system, ("user", text))
    chat = _as_json(messages)
    return [Draft(chat, blank, group=chat, messages=messages)]


def _from_pair(settings: CorpusSettings, template: Template | None, record: Record) -> list[Draft]:
    drafts = []
    for side, column, label in _sides(settings):
        own = text = record.text(column)
        if template is not None:
            text = template.render(_side_or_column(own, record))
        messages = _turns(settings.system, ("user", text)) if settings.chat else None
        prompt = text if messages is None else _as_json(messages)
        drafts.append(Draft(prompt, _is_blank(own), label=label, side=side, messages=messages))
    return drafts


def _from_question(settings: CorpusSettings, _template: Template | None, record: Record) -> list[Draft]:
    question = record.text(str(settings.question_column))
    drafts = []
    for side, column, label in _sides(settings):
        answer = record.text(column)
        messages = None
        if settings.chat:
            messages = _turns(settings.system, ("user", question), ("assistant", answer))
            text = _as_json(messages)
        else:
            text = question + _separator(settings, question, answer) + answer
        fields = {ANSWER: answer, LETTER: letter_of(answer)}
        blank = _is_blank(question) or _is_blank(answer)
        drafts.append(Draft(text, blank, question, label, side, fields, messages))
    return drafts


def _from_messages(settings: CorpusSettings, _template: Template | None, record: Record) -> list[Draft]:
    given = record.messages(str(settings.messages_column))
    messages = given if settings.system is None else (*_turns(settings.system), *given)
    if settings.system is not None and given and given[0].get("role") == "system":
        raise record.fault("the chat begins with a system turn of its own; take corpus.system out")
    chat = _as_json(messages)
    return [Draft(chat, not given, group=chat, messages=messages)]


def _from_token_ids(settings: CorpusSettings, _template: Template | None, record: Record) -> list[Draft]:
    token_ids = record.token_ids(str(settings.token_ids_column))
    text = _as_json(token_ids)
    return [Draft(text, not token_ids, group=text, token_ids=token_ids)]


_MAKERS: Mapping[Shape, Callable[[CorpusSettings, Template | None, Record], list[Draft]]] = MappingProxyType(
    {
        "text": _from_text,
        "pair": _from_pair,
        "question": _from_question,
        "chat": _from_messages,
        "token_ids": _from_token_ids,
    }
)


def _sides(settings: CorpusSettings) -> Sequence[tuple[str, str, Label]]:
    positive, negative = settings.pair_labels
    return (
        ("positive", str(settings.positive_column), positive),
        ("negative", str(settings.negative_column), negative),
    )


def _side_or_column(side: str, record: Record) -> Callable[[str], str]:
    return lambda name: side if name == SIDE else record.name(name)


def _separator(settings: CorpusSettings, question: str, answer: str) -> str:
    if settings.answer_separator is not None:
        return settings.answer_separator
    return "" if question[-1:].isspace() or answer[:1].isspace() else " "


def _turns(system: str | None, *turns: tuple[str, str]) -> Messages:
    spoken = turns if system is None else (("system", system), *turns)
    return tuple({"role": role, "content": content} for role, content in spoken)


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
