"""What a user may say about a corpus, checked without touching a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from easysteer_data.bos import BosPolicy
from easysteer_data.corpus.shape import Shape, check_shape
from easysteer_data.corpus.template import Template
from easysteer_data.errors import SettingsError
from easysteer_data.types import Label

Format = Literal["txt", "jsonl", "json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

EmptyPrompts = Literal["fail", "skip"]
Duplicates = Literal["keep", "first"]

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

    def without_test(self) -> SplitSettings:
        """The same ratio of train to validation, and nothing for test.

        Raises:
            SettingsError: both are 0.
        """
        both = self.train + self.validation
        if both == 0:
            raise SettingsError("with test_path, splits.train or splits.validation must be above 0")
        return SplitSettings(self.train / both, self.validation / both, 0.0, self.seed)


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    r"""Where the prompts are and which columns make them.

    A row makes one prompt from its text (or a template), its chat or its token ids; or two, from the sides
    of a contrast pair or from a question and its two answers. Which of these goes by the columns named.

    Attributes:
        path: a file, a glob of files ("data/*.jsonl"), "hf:NAME" or "hf:FOLDER" for a Hugging Face data set,
            or "builtin:city_facts", "builtin:feelings"; with `files`, the folder that they are in.
        test_path: a file or glob of rows that are all of the test split, as data with a held-out file has it;
            the rows of `path` are then shared out to train and validation in the ratio of theirs.
        files: label -> file or glob in the folder `path`; each row has its file's label in the column `key`,
            which `label_column` names where a probe is to tell the files apart.
        format: "auto" goes by the file's suffix, with or without .gz.
        hf_split: the part of a Hugging Face data set to read.
        hf_config: its configuration, where it has several.
        text_column: holds the prompt; not read where another column or a template makes it. Plain text files
            and JSON lists of strings have one column, named `text`.
        template: makes the prompt from columns, as "{question}\nAnswer: {answer}"; of a pair's sides, {text}
            is the side's.
        positive_column: the side of a pair that is labelled 1 and has the id `ID-positive`.
        negative_column: the side that is labelled 0 and has the id `ID-negative`.
        pair_labels: other labels for the positive and the negative side.
        question_column: makes the pair's sides answers to this question.
        answer_separator: stands between question and answer; None puts a space where neither the question's
            end nor the answer's start is white space. Neither is ever stripped.
        balance_letters: of any two letters, each is the matching answer equally often; drops as few
            questions as that takes.
        messages_column: holds a chat, a list of {role, content}; an assistant's last turn is continued.
        token_ids_column: holds the prompt's tokens, which are run as they are.
        chat: make the text the user's turn of a chat; of a question and its answer, one turn each.
        system: a system turn to begin each chat with.
        id_column: holds unique ids; without it the id is the row's number, from 0 over all files.
        label_column: holds what a probe is to predict; empty cells and nulls mean no label.
        group_column: prompts of one group share a split: an entity, or the pair of a file with a row for each
            side. Without it the group is the exact prompt, the question, or the pair, where pairs that share
            a text are one group.
        split_column: holds train, validation or test; the ratios of `splits` are then not used.
        fields: further columns to keep with each prompt; questions add `answer` and `letter`.
        limit: use the first n rows only, of `path` and of `test_path`; a pair is one row.
        empty_prompts: "fail" on a row whose prompt has no characters or white space alone, or "skip" it.
        duplicates: "keep" all, or the "first" of the rows that make the same texts with the same labels.
        doubled_bos: what to do with prompts that begin with two BOS tokens; see `bos.check_bos`.
        splits: ratios and seed.
    """

    path: str
    test_path: str | None = None
    files: Mapping[Label, str] | None = None
    format: Literal["auto", Format] = "auto"
    hf_split: str = "train"
    hf_config: str | None = None
    text_column: str = "text"
    template: str | None = None
    positive_column: str | None = None
    negative_column: str | None = None
    pair_labels: tuple[Label, Label] = (1, 0)
    question_column: str | None = None
    answer_separator: str | None = None
    balance_letters: bool = False
    messages_column: str | None = None
    token_ids_column: str | None = None
    chat: bool = False
    system: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    fields: tuple[str, ...] = ()
    limit: int | None = None
    empty_prompts: EmptyPrompts = "fail"
    duplicates: Duplicates = "keep"
    doubled_bos: BosPolicy = "refuse"
    splits: SplitSettings = field(default_factory=SplitSettings)

    def __post_init__(self) -> None:
        _check_choice("format", self.format, ("auto", *FORMATS))
        _check_choice("empty_prompts", self.empty_prompts, get_args(EmptyPrompts))
        _check_choice("duplicates", self.duplicates, get_args(Duplicates))
        _check_choice("doubled_bos", self.doubled_bos, get_args(BosPolicy))
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"limit is {self.limit}; give 1 or more, or null for all rows")
        if self.test_path is not None and (self.split_column is not None or self.files is not None):
            raise SettingsError("test_path can't be used together with split_column or files")
        if isinstance(cast(object, self.fields), str):
            raise SettingsError(f"fields is {self.fields!r}; give a list of columns")
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "pair_labels", tuple(self.pair_labels))
        if self.template is not None:
            Template.parse(self.template)
        check_shape(self)

    @property
    def shape(self) -> Shape:
        """What a row of this corpus is."""
        if self.question_column is not None:
            return "question"
        if self.positive_column is not None:
            return "pair"
        if self.messages_column is not None:
            return "chat"
        return "text" if self.token_ids_column is None else "token_ids"


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(choices) if len(choices) > 2 else " or ".join(choices)
        raise SettingsError(f"{key} is {value!r}; choose {listed}")
