"""What an inspection of a run found, and its table of plain text. Reads nothing itself."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from easysteer_data.shards.checked_json import fingerprint_of
from easysteer_data.shards.header import Json, RunHeader
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.types import SPLITS

# Characters of a line of the table.
_WIDTH = 80
_MAX_CLASSES = 20
_DESCRIPTIONS = ("model", "tokenizer", "corpus", "tokenisation", "versions", "provenance")


@dataclass(frozen=True, slots=True)
class Fault:
    """A bad file: its name relative to the run folder, and what is wrong with it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShardInspection:
    """A shard of the plan.

    Attributes:
        number: 0-based.
        prompts: half-open range of prompt indices.
        entry: what the run's records say of it; None where it is not done.
        faults: its bad files.
        splits: split -> prompts.
        labels: label -> prompts, "" for those without one.
    """

    number: int
    prompts: tuple[int, int]
    entry: ShardEntry | None = None
    faults: tuple[Fault, ...] = ()
    splits: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """In one word."""
        return "missing" if self.entry is None else "BAD" if self.faults else "ok"


@dataclass(frozen=True, slots=True)
class RunInspection:
    """A run, every file of which was read.

    Attributes:
        path: the run folder.
        header: what the run is.
        finished: whether it has a manifest.
        shards: every shard of the plan, in order.
        faults: bad files that belong to no shard.
        measured: what was counted and timed while the run was captured.
    """

    path: Path
    header: RunHeader
    finished: bool
    shards: tuple[ShardInspection, ...]
    faults: tuple[Fault, ...]
    measured: Json = field(default_factory=dict)

    @property
    def bad(self) -> tuple[Fault, ...]:
        """Every bad file, the run's own first, then by shard."""
        return (*self.faults, *(fault for shard in self.shards for fault in shard.faults))

    @property
    def n_done(self) -> int:
        """Shards that are done, bad ones too."""
        return sum(shard.entry is not None for shard in self.shards)

    @property
    def ok(self) -> bool:
        """The run is finished and each of its files is as it was written."""
        return self.finished and not self.bad

    @property
    def failure(self) -> str:
        """One line that says what is wrong; empty for a run that is finished and whole."""
        found = []
        if not self.finished:
            found.append(f"unfinished, {self.n_done} of {len(self.shards)} shards are done")
        if self.bad:
            n_bad = sum(bool(shard.faults) for shard in self.shards)
            found.append(f"{len(self.bad)} bad files, {n_bad} of {len(self.shards)} shards are bad")
        return f"{self.path}: {'; '.join(found)}" if found else ""

    def table(self) -> str:
        """The run's records and the state of each shard; lines of at most 80 columns but for long names."""
        lines = [*_facts(self), "", *_streams(self.header), "", *map(_wrap, _counts(self)), ""]
        lines.append(f"{'shard':>6}  {'prompts':>19}  {'rows':>11}  {'bytes':>17}  state")
        lines += [_shard(shard) for shard in self.shards]
        if self.bad:
            lines += ["", "bad files:", *(f"  {fault}" for fault in self.bad)]
        return "\n".join([*lines, "", "ok" if self.ok else "NOT OK"])


def _facts(run: RunInspection) -> list[str]:
    state = "finished" if run.finished else f"unfinished, {run.n_done} of {len(run.shards)} shards done"
    facts = {"state": state, "fingerprint": _short(run.header.fingerprint)}
    facts |= {name: _described(getattr(run.header, name)) for name in _DESCRIPTIONS}
    facts["measured"] = _described(run.measured)
    return [f"run: {run.path}", *(_wrap(f"{name}: {text}") for name, text in facts.items() if text)]


def _streams(header: RunHeader) -> list[str]:
    lines = []
    for stream, layer_ids in header.layers.items():
        shape = header.streams[stream]
        layers = f"{len(layer_ids)} layers ({layer_ranges(layer_ids)})"
        lines.append(_wrap(f"{stream}: {layers} of width {shape.width}, {shape.dtype}"))
    return lines


def _counts(run: RunInspection) -> list[str]:
    entries = [shard.entry for shard in run.shards if shard.entry is not None]
    n_prompts = sum(entry.prompts[1] - entry.prompts[0] for entry in entries)
    n_rows = sum(entry.n_rows for entry in entries)
    lines = [f"{n_prompts:,} prompts, {n_rows:,} rows a layer, {sum(e.n_bytes for e in entries):,} bytes"]
    splits: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for shard in run.shards:
        splits.update(shard.splits)
        labels.update(shard.labels)
    lines.append("splits, in prompts: " + _numbered(splits, SPLITS))
    label = run.header.label
    if label.kind == "classes":
        lines.append("labels, in prompts: " + _numbered(labels, (*label.names, "")))
    else:
        lines.append(str(label))
    return lines


def _numbered(counts: Mapping[str, int], order: Sequence[str]) -> str:
    shown = [f"{name or '(none)'} {counts[name]:,}" for name in order if counts.get(name)]
    more = f", {len(shown) - _MAX_CLASSES} more" if len(shown) > _MAX_CLASSES else ""
    return ", ".join(shown[:_MAX_CLASSES]) + more


def _shard(shard: ShardInspection) -> str:
    prompts = f"{shard.prompts[0]} to {shard.prompts[1] - 1}"
    figures = ("", "") if shard.entry is None else (f"{shard.entry.n_rows:,}", f"{shard.entry.n_bytes:,}")
    return f"{shard.number:>6}  {prompts:>19}  {figures[0]:>11}  {figures[1]:>17}  {shard.state}"


def _described(values: Json) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in values.items() if value not in (None, {}, ""))


def _short(value: object) -> str:
    """A value in words; hashes by their first 12 digits, and a table of them by a hash of it all."""
    if isinstance(value, Mapping):
        if value and all(map(_is_hash, value.values())):
            return fingerprint_of(value)[:12]
        return f"({_described(value)})"
    return str(value)[:12] if _is_hash(value) else str(value)


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def layer_ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers with runs of neighbours joined: 0-3, 7."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _wrap(line: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
