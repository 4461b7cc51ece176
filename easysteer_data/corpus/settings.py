"""What a user may say about a corpus, checked without touching a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from easysteer_data.corpus.template import Template
from easysteer_data.errors import SettingsError

Format = Literal["txt", "jsonl", "json", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)

EmptyPrompts = Literal["fail", "skip"]

_RATIO_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How the groups of a corpus are shared out; the ratios add up to 1.

    Attributes:
        train: share of the prompts to train on.
        validation: share for choices such as the best layer.
        test: share that is reported and used for nothing else.
        seed: another seed deals the groups out anew.
    """

    train: float = 0.6
    validation: float = 0.2
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(math.isfinite(ratio) and ratio >= 0 for ratio in self.ratios):
            raise SettingsError(f"a ratio of splits must be 0 or more, got {self.ratios}")
        if abs(sum(self.ratios) - 1) > _RATIO_TOLERANCE:
            raise SettingsError(
                f"the ratios train, validation and test must add up to 1, got {self.ratios}: "
                f"{sum(self.ratios):g}"
            )

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The ratios in the order of `types.SPLITS`."""
        return (self.train, self.validation, self.test)


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    r"""Where the prompts are and which columns hold what.

    Plain text files and JSON lists of strings have one column, named `text`.

    Attributes:
        path: a file, a glob of files ("data/*.jsonl"), or "builtin:city_facts".
        format: "auto" goes by the file's suffix, with or without .gz; or txt, jsonl, json, csv.
        text_column: holds the prompt; not read when a template is given.
        id_column: holds unique ids; without it the id is the row's number, from 0 over all files.
        label_column: holds what a probe is to predict; empty cells and nulls mean no label.
        group_column: prompts of one group share a split; without it the group is the exact text.
        split_column: holds train, validation or test; the ratios of `splits` are then not used.
        fields: further columns to keep with each prompt.
        template: makes the prompt from columns, as "{question}\nAnswer: {answer}".
        limit: keep the first n prompts only.
        empty_prompts: "fail" on a prompt of no characters or white space alone, or "skip" it.
        splits: ratios and seed.
    """

    path: str
    format: Literal["auto", Format] = "auto"
    text_column: str = "text"
    id_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    fields: tuple[str, ...] = ()
    template: str | None = None
    limit: int | None = None
    empty_prompts: EmptyPrompts = "fail"
    splits: SplitSettings = field(default_factory=SplitSettings)

    def __post_init__(self) -> None:
        if self.format not in ("auto", *FORMATS):
            raise SettingsError(f"format is {self.format!r}; choose auto, {', '.join(FORMATS)}")
        if self.empty_prompts not in get_args(EmptyPrompts):
            raise SettingsError(f"empty_prompts is {self.empty_prompts!r}; choose fail or skip")
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"limit is {self.limit}; give 1 or more, or null for all prompts")
        if isinstance(cast(object, self.fields), str):
            raise SettingsError(f"fields is {self.fields!r}; give a list of columns")
        object.__setattr__(self, "fields", tuple(self.fields))
        if self.template is not None:
            Template.parse(self.template)
