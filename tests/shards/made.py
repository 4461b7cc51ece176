"""Runs of made-up rows, with the plain arrays that they must read back as."""

from __future__ import annotations

import dataclasses
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from easysteer_data.shards import LabelHeader, Manifest, RunHeader, RunWriter, StreamHeader, plan_shards
from easysteer_data.types import (
    SPLITS,
    CapturedPrompt,
    CapturedShard,
    Label,
    Prompt,
    RowIndex,
    Stream,
)

HIDDEN = StreamHeader(layer_ids=(0, 3, 12), width=6, dtype="float32")
YES_NO = LabelHeader("classes", ("no", "yes"))


@dataclasses.dataclass(frozen=True)
class Made:
    """A run to be written: its header, its shards, and all rows in one piece.

    Attributes:
        header: the run's header.
        shards: what the writer is given.
        rows: stream -> layer id -> tensor [n_rows, width], float32 or, without scales, as stored.
        index: labels of all rows.
        prompts: all prompts.
    """

    header: RunHeader
    shards: tuple[CapturedShard, ...]
    rows: Mapping[Stream, Mapping[int, torch.Tensor]]
    index: RowIndex
    prompts: tuple[CapturedPrompt, ...]


def make_run(
    n_rows: Sequence[int] = (3, 0, 2, 5, 1, 4, 0, 2),
    streams: Mapping[Stream, StreamHeader] | None = None,
    label: LabelHeader = YES_NO,
    n_shards: int = 3,
    **header: Any,
) -> Made:
    """Random rows, `n_rows[i]` of prompt i, cut into shards of whole prompts."""
    streams = {"hidden_states": HIDDEN} if streams is None else streams
    generator = torch.Generator().manual_seed(0)
    total = sum(n_rows)
    rows: dict[Stream, dict[int, torch.Tensor]] = {
        stream: {
            layer_id: torch.randn(total, shape.width, generator=generator).to(shape.read_dtype)
            for layer_id in shape.layer_ids
        }
        for stream, shape in streams.items()
    }
    index = RowIndex(
        prompt=_int32(np.repeat(np.arange(len(n_rows)), n_rows)),
        position=_int32([3 * place for n in n_rows for place in range(n)]),
        token_id=torch.randint(0, 50_000, (total,), generator=generator, dtype=torch.int32),
    )
    prompts = tuple(_prompt(number, n, label) for number, n in enumerate(n_rows))
    plan = plan_shards(n_rows, max(shape.row_bytes for shape in streams.values()), min_shards=n_shards)
    values: dict[str, Any] = {
        "fingerprint": "a1",
        "settings": {"select": {"prompt": "all"}, "shards": {"min_shards": n_shards}},
        "model": {"name": "tiny"},
        "tokenizer": {},
        "corpus": {"sha256": "c0"},
        "versions": {"torch": "2"},
        "layer_convention": "after the block",
        "pack_bytes": 64,
    }
    made = RunHeader(streams=streams, label=label, plan=plan, **values | header)
    return Made(made, _cut(made, n_rows, rows, index, prompts), rows, index, prompts)


def write_run(out: Path, made: Made) -> Manifest:
    """Write all of a run in order."""
    with RunWriter.open(out, made.header) as writer:
        for shard in made.shards:
            if shard.number not in writer.done:
                writer.write(shard)
        return writer.close()


def memory_folder() -> TemporaryDirectory[str]:
    """A folder in memory where there is a file system for it, for tests that would wait for the disk.

    What those tests prove does not depend on it: a killed process loses nothing of the page cache.
    """
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if memory.is_dir() else None)


@contextmanager
def disk_with_room_for(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, which fails in the middle of a write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def files_of(folder: Path) -> dict[str, bytes]:
    """Relative name -> contents of every file in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equality that tells NaN from NaN and -0.0 from 0.0."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    return one.dtype == other.dtype and torch.equal(one.view(bits), other.view(bits))


def _prompt(number: int, n_rows: int, label: LabelHeader) -> CapturedPrompt:
    labels: Sequence[Label | None] = {"classes": ("yes", "no", None), "numeric": (0.5, -2, None)}.get(
        label.kind or "", (None,)
    )
    prompt = Prompt(
        index=number,
        id=f"id-{number}",
        text=f"Text {number},\r\n\u201cquoted\u201d \U0001f642 ",
        source=f"corpus.jsonl:{number + 1}",
        label=labels[number % len(labels)],
        group=None if number % 4 == 3 else f"group-{number // 2}",
        split=SPLITS[number // 2 % 3],
        fields={"topic": ["a", number], "depth": {"b": None}},
        token_ids=tuple(range(number, number + n_rows + 1)),
    )
    return CapturedPrompt(prompt, n_rows, f"answer {number}", (7, number))


def _cut(
    header: RunHeader,
    n_rows: Sequence[int],
    rows: Mapping[Stream, Mapping[int, torch.Tensor]],
    index: RowIndex,
    prompts: tuple[CapturedPrompt, ...],
) -> tuple[CapturedShard, ...]:
    ends = np.cumsum([0, *n_rows]).tolist()
    shards = []
    for number, (start, stop) in enumerate(header.plan):
        own = slice(ends[start], ends[stop])
        part = RowIndex(index.prompt[own], index.position[own], index.token_id[own])
        values = {stream: {k: layer[own] for k, layer in layers.items()} for stream, layers in rows.items()}
        shards.append(CapturedShard(number, prompts[start:stop], part, values))
    return tuple(shards)


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32)
