"""Small runs of made-up rows, written through RunWriter: what the tests of readers read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from easysteer_data.shards import LabelHeader, RunHeader, RunWriter, StreamHeader, plan_shards
from easysteer_data.shards.labels import LabelKind
from easysteer_data.types import CapturedPrompt, CapturedShard, Label, Prompt, RowIndex, Split

# Three, one and one of every five prompts.
SPLIT_CYCLE: tuple[Split, ...] = ("train", "validation", "train", "test", "train")


@dataclass(frozen=True)
class MadeRows:
    """Rows and their prompts as plain arrays: what a test writes, and its oracle.

    Attributes:
        x: float32 [rows, layers, width].
        n_rows: rows of each prompt.
        splits: split of each prompt.
        labels: label of each prompt.
        layer_ids: decoder blocks of the axis of layers.
        label_kind: what the run's labels are.
        names: the classes, when that is "classes".
        groups: group of each prompt, none by default.
        fields: fields of each prompt, none by default.
        texts: text of each prompt, "text 0" and so on by default.
        prompt_tokens: tokens of each prompt, none by default.
    """

    x: npt.NDArray[np.float32]
    n_rows: Sequence[int]
    splits: Sequence[Split]
    labels: Sequence[Label | None]
    layer_ids: tuple[int, ...]
    label_kind: LabelKind | None = "classes"
    names: tuple[str, ...] = ("false", "true")
    groups: Sequence[str | None] | None = None
    fields: Sequence[Mapping[str, object]] | None = None
    texts: Sequence[str] | None = None
    prompt_tokens: Sequence[Sequence[int]] | None = None

    @property
    def prompt(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.n_rows)), self.n_rows)

    @property
    def position(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.arange(n) for n in self.n_rows])

    @property
    def token_id(self) -> npt.NDArray[np.int64]:
        return 1000 + 7 * self.prompt + self.position

    @property
    def y(self) -> npt.NDArray[np.int64]:
        """Class index of each row, -1 where the prompt has no label."""
        classes = [-1 if label is None else self.names.index(str(label)) for label in self.labels]
        return np.repeat(classes, self.n_rows)

    def rows_of(self, split: Split) -> npt.NDArray[np.int64]:
        return np.flatnonzero(np.repeat(list(self.splits), self.n_rows) == split)

    def with_splits(self, splits: Iterable[Split]) -> MadeRows:
        return replace(self, splits=list(splits))


def random_rows(n_prompts: int = 50, layer_ids: tuple[int, ...] = (0, 2, 5), width: int = 8) -> MadeRows:
    """Prompts of one to four rows in all three splits, labels false and true in turn."""
    rng = np.random.default_rng(0)
    n_rows = rng.integers(1, 5, n_prompts).tolist()
    return MadeRows(
        x=rng.normal(size=(sum(n_rows), len(layer_ids), width)).astype(np.float32),
        n_rows=n_rows,
        splits=[SPLIT_CYCLE[i % len(SPLIT_CYCLE)] for i in range(n_prompts)],
        labels=[("false", "true")[i // 5 % 2] for i in range(n_prompts)],
        layer_ids=layer_ids,
    )


def labelled_rows(
    strengths: Sequence[float], n_rows: int = 500, width: int = 12, n_classes: int = 2
) -> MadeRows:
    """One row a prompt, correlated features, a mean per class that lies `strength` apart in each layer."""
    rng = np.random.default_rng(1)
    names = ("false", "true") if n_classes == 2 else tuple("abcdefgh"[:n_classes])
    y = rng.integers(0, n_classes, n_rows)
    means = rng.normal(size=(n_classes, len(strengths), width)) * np.array(strengths)[:, None] / width**0.5
    mixing = np.eye(width) + 0.3 * rng.normal(size=(width, width))
    x = rng.normal(size=(n_rows, len(strengths), width)) @ mixing + means[y]
    x[..., 0] = 5.0  # a constant feature, and one of a far larger size, as residual streams have them
    x[..., 1] = 1000 + 50 * x[..., 1]
    return MadeRows(
        x=x.astype(np.float32),
        n_rows=[1] * n_rows,
        splits=[SPLIT_CYCLE[i % len(SPLIT_CYCLE)] for i in range(n_rows)],
        labels=[names[label] for label in y],
        layer_ids=tuple(range(0, 3 * len(strengths), 3)),
        names=names,
    )


def write_run(
    folder: Path,
    rows: MadeRows,
    dtype: str = "float32",
    n_shards: int = 3,
    store_rows: bool = True,
    model: Mapping[str, object] | None = None,
) -> Path:
    """Write the rows as a finished run of several shards, or their statistics alone; return the folder."""
    stream = StreamHeader(rows.layer_ids, rows.x.shape[2], dtype)
    header = RunHeader(
        fingerprint="made-for-a-test",
        settings={},
        model=model or {"name": "made-up-model", "sha256": {"model.safetensors": "a0" * 32}},
        tokenizer={},
        corpus={"name": "made-up-corpus"},
        versions={},
        layer_convention="made up",
        streams={"hidden_states": stream},
        label=LabelHeader(rows.label_kind, rows.names if rows.label_kind == "classes" else ()),
        plan=plan_shards(rows.n_rows, stream.row_bytes, min_shards=n_shards),
        rows=store_rows,
    )
    writer = RunWriter.open(folder, header)
    for number in range(len(header.plan)):
        writer.write(_shard(rows, header, number))
    writer.close()
    return folder


def _shard(rows: MadeRows, header: RunHeader, number: int) -> CapturedShard:
    prompts = range(*header.plan[number])
    chosen = np.isin(rows.prompt, prompts)
    columns = (
        torch.tensor(c[chosen], dtype=torch.int32) for c in (rows.prompt, rows.position, rows.token_id)
    )
    dtype = header.streams["hidden_states"].read_dtype
    layers = {
        layer_id: torch.tensor(rows.x[chosen, layer]).to(dtype)
        for layer, layer_id in enumerate(rows.layer_ids)
    }
    captured = tuple(CapturedPrompt(_prompt(rows, index), rows.n_rows[index]) for index in prompts)
    return CapturedShard(number, captured, RowIndex(*columns), {"hidden_states": layers})


def _prompt(rows: MadeRows, index: int) -> Prompt:
    return Prompt(
        index,
        str(index),
        f"text {index}" if rows.texts is None else rows.texts[index],
        f"made.jsonl:{index + 1}",
        rows.labels[index],
        None if rows.groups is None else rows.groups[index],
        rows.splits[index],
        {} if rows.fields is None else rows.fields[index],
        () if rows.prompt_tokens is None else tuple(rows.prompt_tokens[index]),
    )
