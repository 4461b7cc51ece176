"""What is fixed before the first row of a run: settings, provenance, streams, labels and the plan of shards.

Knows no tensor and no shard's contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import JsonRecord
from easysteer_data.shards.dtypes import SCALED_PEAKS, STORAGE_DTYPES
from easysteer_data.shards.labels import LabelHeader
from easysteer_data.shards.plan import PACK_BYTES, Ranges
from easysteer_data.types import STREAMS, Stream

SCHEMA_VERSION = 2

Json = Mapping[str, object]

_MAX_INT32 = 2**31 - 1  # prompts are int32 in each row

_DESCRIPTIONS = ("settings", "model", "tokenizer", "corpus", "versions", "tokenisation", "provenance")


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The shape that the rows of one stream share.

    Attributes:
        layer_ids: stored decoder blocks, ascending.
        width: elements of a row.
        dtype: storage dtype, one of STORAGE_DTYPES; the writer converts rows of any capture type to it.
        layout: how a row divides, e.g. {"num_heads": 9, "head_size": 64}; None where it does not.
    """

    layer_ids: tuple[int, ...]
    width: int
    dtype: str
    layout: Json | None = None

    def __post_init__(self) -> None:
        if (
            not self.layer_ids
            or min(self.layer_ids) < 0
            or list(self.layer_ids) != sorted(set(self.layer_ids))
        ):
            raise RunError(f"layer_ids must be ascending, different and >= 0, found {self.layer_ids}")
        if not 1 <= self.width <= _MAX_INT32:
            raise RunError(f"width must be in 1 to {_MAX_INT32}, found {self.width}")
        if self.dtype not in STORAGE_DTYPES:
            raise RunError(f"storage dtype must be one of {', '.join(STORAGE_DTYPES)}, found {self.dtype!r}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type of the rows as stored."""
        return STORAGE_DTYPES[self.dtype]

    @property
    def is_scaled(self) -> bool:
        """Whether each row is stored with a float32 scale."""
        return self.torch_dtype in SCALED_PEAKS

    @property
    def read_dtype(self) -> torch.dtype:
        """Element type of the rows as they are read: float32 where they are stored with scales."""
        return torch.float32 if self.is_scaled else self.torch_dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row of one layer, without its scale."""
        return self.width * self.torch_dtype.itemsize

    def to_json(self) -> dict[str, object]:
        """Its part of run.json."""
        layout = None if self.layout is None else dict(self.layout)
        return {"layer_ids": list(self.layer_ids), "width": self.width, "dtype": self.dtype, "layout": layout}

    @classmethod
    def from_json(cls, record: JsonRecord) -> StreamHeader:
        """Read it back; raises RunError on anything that `to_json` would not write."""
        layout = None if record.values.get("layout") is None else record.record("layout").values
        return cls(record.counts("layer_ids"), record.count("width"), record.text("dtype"), layout)


@dataclass(frozen=True, slots=True)
class RunHeader:
    """All that is known of a run before it starts; `run.json` holds it.

    Attributes:
        fingerprint: equal for two runs whose shards must be equal, see `fingerprint_of`.
        settings: the resolved settings that determine the bytes.
        model: which model, with a hash of its weights.
        tokenizer: which tokenizer.
        corpus: which corpus, with its hash.
        versions: package -> version.
        layer_convention: what a row of layer l is, in words.
        streams: what is stored.
        label: what the labels are.
        plan: half-open range of prompt indices of each shard.
        pack_bytes: size that the rows of a pack should be near, of the widest stream's layers.
        tokenisation: the ledger: counts of BOS, templates, truncated and skipped prompts.
        provenance: what else to remember of the run's start, such as hardware; free, and never compared.
        rows: whether rows are stored; False keeps their statistics only.
    """

    fingerprint: str
    settings: Json
    model: Json
    tokenizer: Json
    corpus: Json
    versions: Json
    layer_convention: str
    streams: Mapping[Stream, StreamHeader]
    label: LabelHeader
    plan: Ranges
    pack_bytes: int = PACK_BYTES
    tokenisation: Json = field(default_factory=dict)
    provenance: Json = field(default_factory=dict)
    rows: bool = True

    def __post_init__(self) -> None:
        if not self.fingerprint:
            raise RunError("a run needs a fingerprint")
        if not self.streams:
            raise RunError("a run needs at least one stream")
        for stream in self.streams:
            as_stream(stream)
        if not self.plan or self.plan[0][0] != 0 or any(start >= stop for start, stop in self.plan):
            raise RunError("the plan of shards must be non-empty ranges of prompts that begin at 0")
        if any(before[1] != after[0] for before, after in pairwise(self.plan)):
            raise RunError("the plan of shards must be consecutive ranges of prompts")
        if self.n_prompts > _MAX_INT32:
            raise RunError(f"a run holds at most {_MAX_INT32} prompts, the plan has {self.n_prompts}")

    @property
    def layers(self) -> dict[Stream, tuple[int, ...]]:
        """Stream -> its layer ids, in the order of STREAMS: the order in which files are written."""
        return {stream: self.streams[stream].layer_ids for stream in STREAMS if stream in self.streams}

    @property
    def tar_layers(self) -> dict[Stream, tuple[int, ...]]:
        """Those of `layers` whose rows are stored: all, or none where the run keeps statistics only."""
        return self.layers if self.rows else {}

    @property
    def n_prompts(self) -> int:
        """Prompts of the corpus, skipped ones too."""
        return self.plan[-1][1]

    def to_json(self) -> dict[str, object]:
        """The contents of run.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": self.fingerprint,
            "layer_convention": self.layer_convention,
            "streams": {stream: header.to_json() for stream, header in self.streams.items()},
            "label": self.label.to_json(),
            "plan": [list(prompts) for prompts in self.plan],
            "pack_bytes": self.pack_bytes,
            "rows": self.rows,
            **{name: dict(getattr(self, name)) for name in _DESCRIPTIONS},
        }

    @classmethod
    def from_json(cls, record: JsonRecord) -> RunHeader:
        """Read it back.

        Raises:
            RunError: it is of another schema version, or anything that `to_json` would not write.
        """
        version = record.values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RunError(
                f"{record.where}: schema version {version!r}, but this package reads {SCHEMA_VERSION}; "
                "use the version of easysteer-data that wrote it"
            )
        streams: dict[Stream, StreamHeader] = {}
        for name, item in record.record("streams").items():
            streams[as_stream(name)] = StreamHeader.from_json(item)
        return cls(
            fingerprint=record.text("fingerprint"),
            layer_convention=record.text("layer_convention"),
            streams=streams,
            label=LabelHeader.from_json(record.record("label")),
            plan=tuple((start, stop) for start, stop in record.spans("plan").tolist()),
            pack_bytes=record.count("pack_bytes"),
            rows=record.flag("rows"),
            **{name: record.record(name).values for name in _DESCRIPTIONS},
        )


def as_stream(name: str) -> Stream:
    """The name as a Stream; raises RunError if it is none."""
    for stream in STREAMS:
        if name == stream:
            return stream
    raise RunError(f"stream must be one of {', '.join(STREAMS)}, found {name!r}")
