"""The letters of multiple-choice answers, and questions balanced by them. Knows no files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from easysteer_data.corpus.shape import ANSWER, LETTER
from easysteer_data.corpus.splits import rank
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

# " (A)", "B", "C.", "D) since ...": a capital alone, or marked off from the words that follow.
_LETTER = re.compile(r"\s*(?:\(([A-Z])\)|([A-Z])(?:[).:]|\s*$))")


def letter_of(answer: str) -> str | None:
    """Return the capital that an answer begins with, None where it begins with words."""
    found = _LETTER.match(answer)
    return None if found is None else found[1] or found[2]


def balance_letters(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Keep, of any two letters, as many questions with one as with the other for the matching answer.

    A direction from such questions does not hold the letter. Questions of the more frequent way round are
    dropped by the order of their ids' hashes, as few as that takes; the others are numbered anew.

    Args:
        prompts: the positive and the negative prompt of each question, one after the other.
        seed: another seed drops others.

    Raises:
        CorpusError: an answer begins with no letter, both begin with the same, or no question is left.
    """
    questions = list(zip(prompts[::2], prompts[1::2], strict=True))
    by_letters: dict[tuple[str, str], list[tuple[Prompt, Prompt]]] = defaultdict(list)
    for question in questions:
        by_letters[_letters(question)].append(question)
    kept: set[str] = set()
    for (matching, other), alike in by_letters.items():
        n_kept = min(len(alike), len(by_letters.get((other, matching), ())))
        alike.sort(key=lambda question: rank(seed, question[0].id))
        kept.update(positive.id for positive, _ in alike[:n_kept])
    if not kept:
        raise CorpusError(
            f"{prompts[0].source}: no question is left: none has the letters of another the other way round; "
            "set corpus.balance_letters=false"
        )
    balanced = [prompt for question in questions if question[0].id in kept for prompt in question]
    return [replace(prompt, index=index) for index, prompt in enumerate(balanced)]


def _letters(question: tuple[Prompt, Prompt]) -> tuple[str, str]:
    first, second = (prompt.fields[LETTER] for prompt in question)
    if not isinstance(first, str) or not isinstance(second, str) or first == second:
        answers = " and ".join(repr(prompt.fields[ANSWER]) for prompt in question)
        raise CorpusError(
            f"{question[0].source}: the answers {answers} do not begin with two letters, as (A) and (B); "
            "set corpus.balance_letters=false"
        )
    return first, second
