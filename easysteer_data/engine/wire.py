"""What the driver tells a worker: plain dicts that cross process borders, and the types at both ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from easysteer_data.types import STREAMS, Reduce, Stream

# Our key in LLM(additional_config=...) and in SamplingParams.extra_args.
KEY = "easysteer_data"
Groups = int | Sequence[int]  # of prompts; see StartOrder

# Streams of which each tensor-parallel rank has a part; of the others all ranks have the same rows.
SPLIT_STREAMS: frozenset[Stream] = frozenset({"attention_heads"})

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def mailbox_name(rank: int) -> str:
    """File name of a rank's mailbox."""
    return f"rank{rank}.mailbox"


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What is captured of a stream.

    Attributes:
        layer_ids: its layers, ascending.
        width: values per row of each.
        dtype: dtype of the rows ("float32", "bfloat16", "float16").
    """

    layer_ids: tuple[int, ...]
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Which layers of which streams to record, and how.

    Attributes:
        layers: stream -> layer ids.
        dtypes: stream -> dtype of its rows.
        mailboxes: folder of the ranks' mailboxes.
        mailbox_bytes: bytes of the boxes in each, by rank.
        block_rows: rows in one block at most.
        kept_rows: rows of small steps that are kept to go out together at most, the same for all ranks.
        groups: prompts whose rows are wanted together: so many each time, or those from each of these
            prompts, ascending, to the next; None = no groups. Where rows of a step fill several blocks,
            each ends with a group if it can: its rows need no copy.
        reduce: "last" or "mean" of each prompt's selected rows, None = all of them.
        budget_rows: rows of a layer that may be recorded, None = no bound.
        spool: folder for sums that must cross to another process, None = hand them over in this process.
    """

    layers: Mapping[Stream, Sequence[int]]
    dtypes: Mapping[Stream, str]
    mailboxes: str
    mailbox_bytes: Sequence[int]
    block_rows: int
    kept_rows: int
    groups: Groups | None = None
    reduce: Reduce | None = None
    budget_rows: int | None = None
    spool: str | None = None

    def mailbox(self, rank: int) -> Path:
        """The file of a rank's mailbox."""
        return Path(self.mailboxes) / mailbox_name(rank)

    def to_wire(self) -> dict[str, Any]:
        """Return a dict that msgpack can carry."""
        layers = {stream: list(ids) for stream, ids in self.layers.items()}
        values = {name: getattr(self, name) for name in self.__slots__}
        groups = self.groups if self.groups is None or isinstance(self.groups, int) else list(self.groups)
        return values | {"layers": layers, "dtypes": dict(self.dtypes), "groups": groups}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> StartOrder:
        """Rebuild the order on the worker."""
        return cls(**wire)


@dataclass(frozen=True, slots=True)
class RequestTag:
    """What travels with each request: which prompt it is and which of its rows are wanted.

    Attributes:
        prompt: index of the prompt in the driver's list.
        select: wire form of a SelectSpec, None = every row.
        recipe: place of the recipe that steers it in the list that the workers have, None = not steered.
    """

    prompt: int
    select: Mapping[str, Any] | None
    recipe: int | None = None

    def to_extra_args(self) -> dict[str, Any]:
        """Return the value of `SamplingParams.extra_args`."""
        select = None if self.select is None else dict(self.select)
        return {KEY: {"prompt": self.prompt, "select": select, "recipe": self.recipe}}

    @classmethod
    def of(cls, sampling_params: Any) -> RequestTag | None:
        """Read the tag of a request, None where the request is not ours."""
        tag = (getattr(sampling_params, "extra_args", None) or {}).get(KEY)
        return None if tag is None else cls(tag["prompt"], tag["select"], tag["recipe"])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one engine step, in batch order.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        token_id: int32 [n], the token that the model read there.
        values: stream -> a Tensor [n, width] a layer in the storage dtype, layers as ordered; of no rows
            where they are reduced to their mean.
        peaks: stream -> float32 [n_layers, n], largest absolute value of the row before it was narrowed;
            NaN and infinity stay, 0 means an all-zero row.
    """

    prompt: torch.Tensor
    position: torch.Tensor
    token_id: torch.Tensor
    values: Mapping[Stream, Sequence[torch.Tensor]]
    peaks: Mapping[Stream, torch.Tensor]

    def __len__(self) -> int:
        return int(self.prompt.shape[0])

    @property
    def n_bytes(self) -> int:
        """Bytes of the values."""
        return sum(rows.nbytes for layers in self.values.values() for rows in layers)

    def where(self, mask: torch.Tensor) -> Self:
        """Return the rows at which the mask, bool [n], is set."""
        return replace(
            self,
            prompt=self.prompt[mask],
            position=self.position[mask],
            token_id=self.token_id[mask],
            # Rows that were reduced to their mean have labels and no values.
            values={s: [rows[mask] if len(rows) else rows for rows in v] for s, v in self.values.items()},
            peaks={stream: value[:, mask] for stream, value in self.peaks.items()},
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """Partial sums of prompts' rows, for the mean.

    Attributes:
        prompt: int32 [m], index of the prompt, each once.
        values: stream -> float64 [n_layers, m, width].
    """

    prompt: torch.Tensor
    values: Mapping[Stream, torch.Tensor]

    @property
    def n_bytes(self) -> int:
        """Bytes of the values."""
        return sum(values.nbytes for values in self.values.values())

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """Return one flat dict of tensors."""
        return {"prompt": self.prompt} | dict(self.values)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Rebuild it from `to_tensors`."""
        return cls(tensors["prompt"], {stream: tensors[stream] for stream in STREAMS if stream in tensors})

    def where(self, mask: torch.Tensor) -> Self:
        """Return the sums at which the mask, bool [m], is set."""
        return replace(
            self,
            prompt=self.prompt[mask],
            values={stream: value[:, mask] for stream, value in self.values.items()},
        )


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself.

    Attributes:
        rank: rank of the worker in the whole engine.
        tensor_rank: rank among the workers that share each layer.
        n_tensor_ranks: number of these.
        n_pipeline_ranks: number of ranks that layers are spread over.
        pid: process id; equal to the driver's for an in-process engine.
        runner: "V1" or "V2".
        dtype: the model's dtype, as in "float32".
        device: "cpu" or "cuda".
        speculative: whether the engine decodes speculatively.
        architecture: name of vLLM's model class.
        plain: whether the engine was opened without our worker.
        absent: streams that were asked for and that the model does not have.
        streams: stream -> {"layer_ids", "width", "layouts"} for every stream that is tapped.
        steering: {"layer_ids", "width"} of what can be steered, None = the engine is not ready for it.
    """

    rank: int
    tensor_rank: int
    n_tensor_ranks: int
    n_pipeline_ranks: int
    pid: int
    runner: str
    dtype: str
    device: str
    speculative: bool
    architecture: str
    plain: bool
    absent: Sequence[Stream]
    streams: Mapping[Stream, Mapping[str, Any]]
    steering: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return a dict that msgpack can carry."""
        return {name: getattr(self, name) for name in self.__slots__}
