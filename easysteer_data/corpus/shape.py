"""What a row of a corpus is, and which settings make sense for it. Knows settings, no rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from easysteer_data.corpus.template import Template
from easysteer_data.errors import SettingsError

if TYPE_CHECKING:
    from easysteer_data.corpus.settings import CorpusSettings

Shape = Literal["text", "pair", "question", "chat", "token_ids"]

# What a pair's template calls the text of the side.
SIDE = "text"

# The fields that a question's prompts have beside the columns asked for.
ANSWER, LETTER = "answer", "letter"


def check_shape(settings: CorpusSettings) -> None:
    """Refuse settings that ask for two shapes at once, or for something that the shape does not have.

    Raises:
        SettingsError: names the keys and what to do.
    """
    fault = next(_faults(settings), None)
    if fault is not None:
        raise SettingsError(fault)


def _faults(settings: CorpusSettings) -> Iterator[str]:
    keys = ("positive_column", "messages_column", "token_ids_column")
    given = [key for key in keys if getattr(settings, key) is not None]
    if len(given) > 1:
        yield f"{' and '.join(given)} each make the prompt; set one of them"
    if (settings.positive_column is None) != (settings.negative_column is None):
        yield "a pair has two sides; set positive_column and negative_column"
    if settings.question_column is not None and settings.positive_column is None:
        yield "question_column needs the two answers; set positive_column and negative_column"
    yield from _template_faults(settings)
    yield from _pair_faults(settings)
    yield from _chat_faults(settings)


def _template_faults(settings: CorpusSettings) -> Iterator[str]:
    if settings.template is None or settings.shape == "text":
        return
    if settings.shape != "pair":
        yield f"template is for texts and pairs; take it out, or take out {settings.shape}'s columns"
    elif SIDE not in (column for _, column in Template.parse(settings.template).pieces):
        yield f"template {settings.template!r}: write {{{SIDE}}} where the side's text goes"


def _pair_faults(settings: CorpusSettings) -> Iterator[str]:
    if settings.shape in ("pair", "question"):
        if settings.label_column is not None:
            yield "label_column: the sides of a pair are labelled by pair_labels; take one of the two out"
        labels = settings.pair_labels
        if len(labels) != 2 or type(labels[0]) is not type(labels[1]) or labels[0] == labels[1]:
            yield f"pair_labels is {labels!r}; give two different labels of one type, the positive one first"
    if settings.shape == "question":
        if taken := [name for name in settings.fields if name in (ANSWER, LETTER)]:
            yield f"fields: {taken[0]!r} is a field that questions have already"
    elif settings.answer_separator is not None or settings.balance_letters:
        yield "answer_separator and balance_letters are for questions; set question_column"


def _chat_faults(settings: CorpusSettings) -> Iterator[str]:
    if settings.chat and settings.shape in ("chat", "token_ids"):
        yield f"chat makes texts into chats; take it out beside {settings.shape}'s column"
    if settings.chat and settings.answer_separator is not None:
        yield "answer_separator: in a chat the question and the answer are turns of their own; take it out"
    if settings.system is not None and not (settings.chat or settings.shape == "chat"):
        yield "system is a turn of a chat; set chat=true or messages_column"
