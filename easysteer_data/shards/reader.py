"""A finished run as its reader sees it: rows, their labels, the prompt table, statistics.

Knows files only: needs neither vLLM nor Lightning, runs nothing a file says, and trusts no number in one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json, read_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import ShardIndex, read_index
from easysteer_data.shards.journal import ShardEntry, read_journal
from easysteer_data.shards.labels import NO_CLASS
from easysteer_data.shards.manifest import Manifest, read_manifest
from easysteer_data.shards.prompt_table import SCHEMA, read_prompt_table
from easysteer_data.shards.statistics import RowStatistics, read_statistics
from easysteer_data.shards.stream_rows import StreamRows
from easysteer_data.types import SPLITS, RowIndex, Stream


def open_run(path: Path | str) -> Run:
    """Open a finished run.

    Checks that each file is there, has its size, and that each index fits its files; hashes of the rows are
    not checked here.

    Raises:
        RunError: there is no run, it is not finished, or another schema version wrote it.
        BadShardError: files are missing or altered; the message lists all of them.
    """
    path = Path(path)
    if not (path / layout.MANIFEST).is_file():
        raise RunError(_why_no_manifest(path))
    manifest = read_manifest(path)
    faults = manifest.faults(path)
    shards = []
    for entry in manifest.shards:
        if entry.faults(path):
            continue
        try:
            shards.append(_open_index(path, manifest, entry))
        except RunError as error:
            faults.append(str(error))
    if faults:
        raise BadShardError(
            f"{path}: {len(faults)} bad files; capture again with the same settings to mend them\n  "
            + "\n  ".join(faults)
        )
    return Run(path, manifest, shards)


class Run:
    """A finished run. Row numbers count over all shards, in order of (prompt, position).

    Files are mapped when first read. A run can be pickled, e.g. for spawned loader workers.

    Attributes:
        path: the run folder.
        manifest: what the run is and which files it has.
        streams: stream -> stored layer ids.
        n_rows: rows of every layer.
    """

    def __init__(self, path: Path, manifest: Manifest, shards: Sequence[ShardIndex]) -> None:
        self.path = path
        self.manifest = manifest
        self.streams = manifest.header.layers
        self.n_rows = manifest.n_rows
        self._rows = {stream: StreamRows(path, manifest, stream, shards) for stream in self.streams}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("index", "labels")}

    def __repr__(self) -> str:
        header = self.manifest.header
        streams = "; ".join(
            f"{stream}: {len(shape.layer_ids)} layers of width {shape.width}, {shape.dtype}"
            for stream, shape in header.streams.items()
        )
        return (
            f"Run({str(self.path)!r}, {self.n_rows} rows of {header.n_prompts} prompts in "
            f"{len(header.plan)} shards; {streams}; {header.label})"
        )

    def layers(self, stream: Stream = "hidden_states") -> tuple[int, ...]:
        """Stored layer ids of a stream, ascending; raises RunError if the run has no such stream."""
        self._of(stream)
        return self.streams[stream]

    def gather(self, stream: Stream, layer_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Copy rows (int64 [B]) of L layers out of the files: [B, L, width] in the storage dtype.

        Raises:
            RunError: the run does not store such a stream or layer.
            IndexError: there is no such row.
            BadShardError: a file is gone or has another size.
        """
        return self._of(stream).gather(layer_ids, rows)

    @cached_property
    def index(self) -> RowIndex:
        """Prompt, position and token of every row; BadShardError if rows lie in another prompt's shard."""
        rows = next(iter(self._rows.values()))
        prompt, position, token_id = (
            rows.column(name, torch.int32) for name in ("prompt", "position", "token_id")
        )
        ranges = torch.tensor([entry.prompts for entry in self.manifest.shards], dtype=torch.int32)
        n_rows = torch.tensor([entry.n_rows for entry in self.manifest.shards])
        bounds = ranges.repeat_interleave(n_rows, dim=0)
        if ((prompt < bounds[:, 0]) | (prompt >= bounds[:, 1])).any():
            raise BadShardError(f"{self.path}: a shard holds rows of prompts that belong to another shard")
        return RowIndex(prompt, position, token_id)

    @cached_property
    def labels(self) -> torch.Tensor | None:
        """Label of every row: int64 class index (-1: none), float32 number (NaN: none), or None at all.

        Raises:
            BadShardError: a stored class index stands for no class.
        """
        label = self.manifest.header.label
        if label.dtype is None:
            return None
        labels = next(iter(self._rows.values())).column("label", label.dtype)
        if label.kind == "classes" and ((labels < NO_CLASS) | (labels >= len(label.names))).any():
            raise BadShardError(f"{self.path}: a shard holds labels beyond the run's classes")
        return labels

    def prompts(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The prompt table of the whole run, in order: all columns of prompt_table.SCHEMA, or some.

        Raises:
            RunError: there is no such column.
            BadShardError: a table can't be read or is not of its shard's prompts.
        """
        unknown = sorted(set(columns or ()) - set(SCHEMA.names))
        if unknown:
            raise RunError(f"the prompt table has no column {unknown[0]!r}, only {', '.join(SCHEMA.names)}")
        return pa.concat_tables(
            read_prompt_table(self.path / layout.prompts_name(entry.number), entry.prompts, columns)
            for entry in self.manifest.shards
        )

    def row_splits(self) -> NDArray[np.int8]:
        """Split of every row, as its place in SPLITS: 0 train, 1 validation, 2 test."""
        table = self.prompts(["split", "n_rows"])
        codes = {split: code for code, split in enumerate(SPLITS)}
        try:
            splits = np.array([codes[split] for split in table["split"].to_pylist()], dtype=np.int8)
        except KeyError as error:
            raise BadShardError(f"{self.path}: the prompt table has the unknown split {error}") from error
        n_rows = table["n_rows"].to_numpy()
        if n_rows.min() < 0 or n_rows.sum() != self.n_rows:
            raise BadShardError(f"{self.path}: the prompt table counts other rows than the shards hold")
        return np.repeat(splits, n_rows)

    def statistics(self, stream: Stream, layer_id: int) -> RowStatistics:
        """Statistics of all rows of a layer, of every split.

        Raises:
            RunError: the run does not store such a stream or layer.
            BadShardError: the statistics can't be read.
        """
        if layer_id not in self.layers(stream):
            raise RunError(f"{self.path} holds no layer {layer_id} of {stream}: {self.layers(stream)}")
        return read_statistics(self.path / layout.STATISTICS, (stream, layer_id))

    def _of(self, stream: Stream) -> StreamRows:
        if stream not in self._rows:
            raise RunError(f"{self.path} holds no {stream}, only {', '.join(self._rows)}")
        return self._rows[stream]


def _open_index(path: Path, manifest: Manifest, entry: ShardEntry) -> ShardIndex:
    name = layout.index_name(entry.number)
    data = (path / name).read_bytes()
    (listed,) = (file for file in entry.files if file.name == name)
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise RunError(f"{name}: altered, its sha256 is not the manifest's")
    return read_index(parse_json(data, name), manifest.header, entry)


def _why_no_manifest(path: Path) -> str:
    if not path.is_dir():
        return f"{path}: no such folder"
    if not (path / layout.RUN).is_file():
        return f"{path}: is no run folder, it has neither {layout.MANIFEST} nor {layout.RUN}"
    n_planned = len(RunHeader.from_json(read_json(path / layout.RUN)).plan)
    n_committed = len(read_journal(path / layout.JOURNAL))
    return (
        f"{path}: the run is unfinished, {n_committed} of {n_planned} shards are committed; "
        "capture again with the same settings to finish it"
    )
