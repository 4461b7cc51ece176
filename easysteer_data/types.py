"""The records that cross room borders: prompts in, labelled rows out. Pure checks, no I/O, no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

Stream = Literal["hidden_states", "router_logits", "attention_heads"]
STREAMS: tuple[Stream, ...] = get_args(Stream)

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Gates = Literal["raise", "count"]
Reduce = Literal["last", "mean"]
OnExisting = Literal["resume", "fail", "overwrite"]

Label = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a corpus: text in.

    Attributes:
        index: 0-based place in the corpus; the join key of rows and prompts.
        id: the corpus' own id, or the index as text.
        text: the prompt's exact text; of a chat, once it is rendered; of given tokens, their decoding.
        source: where it came from, as `file:line` (1-based) for error messages.
        label: what a probe is to predict, None where there is none.
        group: prompts of one group always share a split (entity, pair, duplicate text).
        split: the part of the data set that the prompt belongs to.
        fields: every other column that the corpus settings name.
        token_ids: the prompt's tokens, once tokenised; the corpus may give them.
        messages: a chat, which the model's template makes into text; None where the corpus gives text.
    """

    index: int
    id: str
    text: str
    source: str
    label: Label | None = None
    group: str | None = None
    split: Split = "train"
    fields: Mapping[str, object] = field(default_factory=dict)
    token_ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, object], ...] | None = None


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Labels of n rows, in order of (prompt, position), each pair at most once.

    Attributes:
        prompt: int32 [n], index of the prompt in the corpus.
        position: int32 [n], 0-based token position in prompt + completion.
        token_id: int32 [n], the token that the model read at that position.
    """

    prompt: torch.Tensor
    position: torch.Tensor
    token_id: torch.Tensor

    def __len__(self) -> int:
        return int(self.prompt.shape[0])


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """What is known of a prompt once it was captured; stored once a run in the prompt table.

    Attributes:
        prompt: the corpus' record, tokenised.
        n_rows: rows stored for it in every layer.
        generated_text: the completion, "" when only the prompt was run.
        generated_token_ids: the completion's tokens.
    """

    prompt: Prompt
    n_rows: int
    generated_text: str = ""
    generated_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedShard:
    """All rows of a fixed, consecutive range of prompts: what the writer takes.

    Attributes:
        number: 0-based shard number.
        prompts: the shard's prompts, consecutive.
        index: labels of the rows.
        values: stream -> layer id -> Tensor [n, width] of float32, bfloat16 or float16 as captured, rows as
            in `index`.
    """

    number: int
    prompts: tuple[CapturedPrompt, ...]
    index: RowIndex
    values: Mapping[Stream, Mapping[int, torch.Tensor]]
