"""The held-out prompts of a trial and its questions with two answers. Knows runs and texts, no engine."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.errors import RunError
from easysteer_data.shards import Run
from easysteer_data.steer_options import TrialPromptSettings
from easysteer_data.tokens import load_tokenizer, tokenize
from easysteer_data.types import Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrialPrompt:
    """A prompt to complete.

    Attributes:
        id: its own or its question's.
        text: for readers.
        token_ids: what the model reads.
    """

    id: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question with two answers that differ from one token on, such as the letter in "(A)".

    Attributes:
        prompt: the question and what the answers have in common.
        matching: first token of the answer of the positive class that the other one does not share.
        other: the other answer's token in that place.
    """

    prompt: TrialPrompt
    matching: int
    other: int


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """A prompt of the run with its label.

    Attributes:
        prompt: the prompt.
        positions: of its rows in the run.
        positive: whether it is of the positive class.
    """

    prompt: TrialPrompt
    positions: tuple[int, ...]
    positive: bool


@dataclass(frozen=True, slots=True)
class Material:
    """What a trial runs.

    Attributes:
        prompts: to complete.
        questions: to ask.
        labelled: to capture under steering.
        origin: where they come from, in words.
    """

    prompts: tuple[TrialPrompt, ...]
    questions: tuple[Question, ...] = ()
    labelled: tuple[LabelledPrompt, ...] = ()
    origin: str = ""


def held_out_material(run: Run, settings: TrialPromptSettings) -> Material:
    """A held-out split's questions, labelled prompts, and prompts to complete.

    These are the questions, or the texts of a corpus without any.

    Raises:
        RunError: the split has no prompt, or what is to be captured again is not known of its rows.
    """
    columns = ["index", "id", "text", "split", "label_value", "fields", "token_ids"]
    table = [row for row in run.prompts(columns).to_pylist() if row["split"] == settings.split]
    if not table:
        raise RunError(
            f"{run.path}: no prompt in the split {settings.split!r}; give steer.prompts.given, or capture "
            "with another ratio of corpus.splits"
        )
    questions = _questions(table)
    prompts = [question.prompt for question in questions] or [_trial_prompt(row) for row in table]
    labelled = _labelled(run, table, settings.n_labelled) if settings.n_labelled else ()
    completed, asked = spread(prompts, settings.n_prompts), spread(questions, settings.n_questions)
    origin = f"{len(completed)} prompts{f' and {len(asked)} questions' if asked else ''} of the split "
    return Material(tuple(completed), tuple(asked), labelled, origin + settings.split)


def given_prompts(
    given: str | Sequence[str], model: str, max_model_len: int, max_tokens: int
) -> list[TrialPrompt]:
    """Prompts from texts or from a file of them, tokenised as for a capture.

    Args:
        given: the texts; or a file with one a line, or with a column `text`.
        model: folder of the model.
        max_model_len: longest prompt plus completion, in tokens.
        max_tokens: longest completion.

    Raises:
        CorpusError: the file can't be read, or a prompt is too long.
    """
    if isinstance(given, str):
        prompts = read_corpus(CorpusSettings(path=given))
    else:
        prompts = [
            Prompt(i, str(i), text, f"steer.prompts.given, entry {i + 1}") for i, text in enumerate(given)
        ]
    tokenised, _ = tokenize(
        prompts, load_tokenizer(model), max_model_len=max_model_len, max_tokens=max_tokens
    )
    return [TrialPrompt(one.id, one.text, one.token_ids) for one in tokenised]


def spread(items: Sequence[T], n_most: int) -> list[T]:
    """At most so many of the items, evenly spaced."""
    step = max(len(items) / n_most, 1.0) if n_most else 0.0
    return [items[int(i * step)] for i in range(min(n_most, len(items)))]


def _trial_prompt(row: Mapping[str, Any]) -> TrialPrompt:
    return TrialPrompt(row["id"], row["text"], tuple(row["token_ids"]))


def _labelled(run: Run, table: Sequence[Mapping[str, Any]], n_most: int) -> tuple[LabelledPrompt, ...]:
    """Prompts of the highest class and of the others; those that have rows among their own tokens."""
    select = run.manifest.header.settings.get("select")
    if isinstance(select, Mapping) and select.get("reduce") == "mean":
        raise RunError(
            f"{run.path}: its rows are means, which can't be captured again at their positions; set "
            "steer.prompts.n_labelled=0"
        )
    positions: dict[int, list[int]] = defaultdict(list)
    for prompt, position in zip(run.index.prompt.tolist(), run.index.position.tolist(), strict=True):
        positions[prompt].append(position)
    highest = max((row["label_value"] for row in table if row["label_value"] is not None), default=None)
    found = []
    for row in table:
        own = tuple(place for place in positions[row["index"]] if place < len(row["token_ids"]))
        if own and row["label_value"] is not None:
            found.append(LabelledPrompt(_trial_prompt(row), own, row["label_value"] == highest))
    if len({one.positive for one in found}) < 2:
        raise RunError(f"{run.path}: the split has no rows of two classes; set steer.prompts.n_labelled=0")
    return tuple(spread(found, n_most))


def _questions(table: Sequence[Mapping[str, Any]]) -> list[Question]:
    """Both answers of each question of a corpus that has them; their ids differ behind the last dash."""
    answers: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        if "answer" in json.loads(row["fields"]):
            answers.setdefault(row["id"].rpartition("-")[0], []).append(row)
    found = [_question(name, *sides) for name, sides in answers.items() if len(sides) == 2]
    return [question for question in found if question is not None]


def _question(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Question | None:
    """None where the answers share all tokens of one of them, or none."""
    negative, positive = sorted((one, other), key=lambda row: float(row["label_value"]))
    matching, others = positive["token_ids"], negative["token_ids"]
    n_shared = _n_shared(matching, others)
    if not 0 < n_shared < min(len(matching), len(others)):
        return None
    text = positive["text"][: _n_shared(positive["text"], negative["text"])]
    return Question(TrialPrompt(name, text, tuple(matching[:n_shared])), matching[n_shared], others[n_shared])


def _n_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How long both begin alike."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
