"""What the labels of a corpus are: classes or numbers, and each class's index. Knows no files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from easysteer_data.errors import CorpusError
from easysteer_data.types import Label, Prompt

LabelKind = Literal["classes", "numeric"]

MAX_CLASSES = 1000

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class LabelClasses(NamedTuple):
    """How labels become targets.

    Attributes:
        kind: "classes" for text, whole numbers and booleans, "numeric" for decimal numbers, None for
            a corpus without labels.
        names: the classes as text, in the order of their indices; empty unless `kind` is "classes".
    """

    kind: LabelKind | None
    names: tuple[str, ...]

    def index_of(self, label: Label) -> int:
        """Return the 0-based index of a label's class.

        Raises:
            CorpusError: the label is none of the classes.
        """
        index = _index_by_name(self.names).get(str(label))
        if index is None:
            raise CorpusError(f"the label {label!r} is none of the classes {', '.join(self.names[:10])}")
        return index


def label_classes(prompts: Sequence[Prompt]) -> LabelClasses:
    """Return the kind of the labels and the classes: text in code point order, whole numbers by value.

    Raises:
        CorpusError: more than `MAX_CLASSES` classes, which is most likely a number to predict.
    """
    labels = {prompt.label for prompt in prompts if prompt.label is not None}
    if not labels:
        return LabelClasses(None, ())
    if any(isinstance(label, float) for label in labels):
        return LabelClasses("numeric", ())
    if len(labels) > MAX_CLASSES:
        raise CorpusError(
            f"the labels have {len(labels)} distinct values, more than {MAX_CLASSES} classes; "
            "write them as decimal numbers (3.0) if they are a number to predict"
        )
    return LabelClasses("classes", tuple(str(label) for label in sorted(labels)))


def settle_labels(prompts: Sequence[Prompt], untyped: Collection[int]) -> list[Prompt]:
    """Give all labels of a corpus one type.

    CSV knows text alone: its labels become numbers where every one of them is written as JSON writes
    numbers, so that "01" and "yes" stay text. Whole numbers become decimal ones where both are there.

    Args:
        prompts: the corpus.
        untyped: indices of the prompts whose label comes from a format without types.

    Raises:
        CorpusError: labels of different types, or a number that is not finite.
    """
    texts = [str(prompt.label) for prompt in prompts if prompt.index in untyped and prompt.label is not None]
    if texts and all(_JSON_NUMBER.fullmatch(text) for text in texts):
        prompts = [
            replace(prompt, label=json.loads(prompt.label))
            if prompt.index in untyped and isinstance(prompt.label, str)
            else prompt
            for prompt in prompts
        ]
    first: dict[type, Prompt] = {}
    for prompt in prompts:
        if prompt.label is not None:
            first.setdefault(type(prompt.label), prompt)
            if isinstance(prompt.label, float) and not math.isfinite(prompt.label):
                raise CorpusError(f"{prompt.source}: the label is {prompt.label}; give a finite number")
    if first.keys() == {int, float}:
        return [replace(p, label=float(p.label)) if isinstance(p.label, int) else p for p in prompts]
    if len(first) > 1:
        one, other = list(first.values())[:2]
        raise CorpusError(
            f"{other.source}: the label {other.label!r} is of another type than {one.label!r} at {one.source}"
        )
    return list(prompts)


@lru_cache(maxsize=8)
def _index_by_name(names: tuple[str, ...]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}
