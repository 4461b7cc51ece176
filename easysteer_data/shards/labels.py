"""Labels as numbers: how a run's labels are named and stored. Knows no file and no row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast, get_args

import torch

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import JsonRecord
from easysteer_data.types import CapturedPrompt, Prompt

LabelKind = Literal["classes", "numeric"]

NO_CLASS = -1
MAX_CLASS_MEANS = 64  # 3 splits of 64 means in float64 weigh as much as 768 rows in float16


@dataclass(frozen=True, slots=True)
class LabelHeader:
    """What a run's labels are.

    Attributes:
        kind: "classes" (stored as int64 index into `names`, -1 for a prompt without a label), "numeric"
            (stored as float32, NaN for a prompt without a label), or None where no prompt has a label.
        names: the classes, as `str(label)`, in the order of their index; empty unless kind is "classes".
    """

    kind: LabelKind | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(LabelKind):
            raise RunError(f"label kind must be one of {get_args(LabelKind)} or None, found {self.kind!r}")
        if (self.kind == "classes") != bool(self.names):
            raise RunError(f"class names belong to label kind 'classes' only: {self.kind!r} has {self.names}")
        if len(set(self.names)) != len(self.names):
            raise RunError(f"class names must differ: {self.names}")

    def __str__(self) -> str:
        if self.kind != "classes":
            return "numeric labels" if self.kind == "numeric" else "no labels"
        return f"labels {', '.join(self.names)}" if len(self.names) < 10 else f"{len(self.names)} labels"

    def to_json(self) -> dict[str, object]:
        """Its part of run.json."""
        return {"kind": self.kind, "names": list(self.names)}

    @classmethod
    def from_json(cls, record: JsonRecord) -> LabelHeader:
        """Read it back; raises RunError on anything that `to_json` would not write."""
        kind = None if record.values.get("kind") is None else record.text("kind")
        return cls(cast("LabelKind | None", kind), record.texts("names"))

    @property
    def n_class_means(self) -> int:
        """Classes whose mean rows the statistics keep: all, or none where there are over MAX_CLASS_MEANS."""
        return len(self.names) if len(self.names) <= MAX_CLASS_MEANS else 0

    @property
    def dtype(self) -> torch.dtype | None:
        """Element type of stored labels, None where there are none."""
        return {"classes": torch.int64, "numeric": torch.float32, None: None}[self.kind]

    def values(self, prompts: Iterable[Prompt]) -> list[int | float]:
        """The stored form of each prompt's label; kind must not be None.

        Raises:
            RunError: a label is none of the classes, or no number; the message names the prompt.
        """
        codes = {name: code for code, name in enumerate(self.names)}
        value: Callable[[Prompt], int | float] = _number if self.kind == "numeric" else partial(_class, codes)
        return [value(prompt) for prompt in prompts]


def row_labels(prompts: Sequence[CapturedPrompt], header: LabelHeader) -> torch.Tensor | None:
    """The label of each row of consecutive prompts, [n], or None where the run has no labels."""
    if header.dtype is None:
        return None
    values = torch.tensor(header.values(captured.prompt for captured in prompts), dtype=header.dtype)
    return values.repeat_interleave(torch.tensor([captured.n_rows for captured in prompts]))


def _class(codes: dict[str, int], prompt: Prompt) -> int:
    if prompt.label is None:
        return NO_CLASS
    code = codes.get(str(prompt.label))
    if code is None:
        raise RunError(f"{prompt.source}: label {prompt.label!r} is none of the run's classes {[*codes]}")
    return code


def _number(prompt: Prompt) -> float:
    if prompt.label is None:
        return math.nan
    try:
        return float(prompt.label)
    except ValueError as error:
        raise RunError(
            f"{prompt.source}: label {prompt.label!r} is no number, but the run's labels are"
        ) from error
