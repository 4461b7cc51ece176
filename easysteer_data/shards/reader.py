"""A finished run as its reader sees it: rows, their labels, the prompt table, statistics.

Knows files only: needs neither vLLM nor Lightning, runs nothing a file says, and trusts no number in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.index import ShardIndex
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.prompt_table import SCHEMA, read_prompt_table
from easysteer_data.shards.row_columns import class_labels, row_index, row_splits
from easysteer_data.shards.statistics import LayerStatistics, RowStatistics
from easysteer_data.shards.statistics_file import read_statistics
from easysteer_data.shards.storage import StorageError
from easysteer_data.shards.stream_rows import LocatedRows, StreamRows
from easysteer_data.types import SPLITS, RowIndex, Split, Stream


class Run:
    """A finished run. Row numbers count over all shards, in order of (prompt, position).

    Files are mapped when first read. A run can be pickled, e.g. for spawned loader workers.

    Attributes:
        path: the run folder.
        manifest: what the run is and which files it has.
        streams: stream -> stored layer ids.
        n_rows: rows of every layer; those measured where the run keeps statistics only.
    """

    def __init__(self, path: Path, manifest: Manifest, shards: Sequence[ShardIndex]) -> None:
        self.path = path
        self.manifest = manifest
        self.streams = manifest.header.layers
        self.n_rows = manifest.n_rows
        stored = manifest.header.tar_layers
        self._rows = {stream: StreamRows(path, manifest, stream, shards) for stream in stored}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("index", "labels")}

    def __repr__(self) -> str:
        header = self.manifest.header
        streams = "; ".join(
            f"{stream}: {len(shape.layer_ids)} layers of width {shape.width}, {shape.dtype}"
            for stream, shape in header.streams.items()
        )
        return (
            f"Run({str(self.path)!r}, {self.n_rows} rows{'' if header.rows else ' (statistics only)'} of "
            f"{header.n_prompts} prompts in {len(header.plan)} shards; {streams}; {header.label})"
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer ids of the hidden states, ascending; of a run without them, those of its first stream."""
        return self.streams.get("hidden_states") or next(iter(self.streams.values()))

    def layer_ids(self, stream: Stream) -> tuple[int, ...]:
        """Layer ids of a stream, ascending; raises RunError if the run has no such stream."""
        if stream not in self.streams:
            raise RunError(f"{self.path} holds no {stream}, only {', '.join(self.streams)}")
        return self.streams[stream]

    def gather(self, stream: Stream, layer_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Copy rows (int64 [B]) of L layers out of the files.

        Returns:
            [B, L, width] in the storage dtype; of float8_e4m3 and int8, float32 multiplied by their scales.

        Raises:
            RunError: the run does not store such a stream or layer, or no rows at all.
            IndexError: there is no such row.
            BadShardError: a file is gone or has another size.
        """
        return self._of(stream).gather(layer_ids, rows)

    def locate(self, stream: Stream, layer_ids: Sequence[int], rows: torch.Tensor) -> LocatedRows:
        """Find where rows (int64 [B]) of L layers lie, to copy them in parts; raises what `gather` does."""
        return self._of(stream).locate(layer_ids, rows)

    @property
    def pack_starts(self) -> NDArray[np.int64]:
        """First row of each pack that has rows, ascending; the same in every layer and stream."""
        starts = np.unique(next(iter(self._rows.values())).first_rows)
        return starts[starts < self.n_rows]

    @cached_property
    def index(self) -> RowIndex:
        """Prompt, position and token of every row.

        Raises:
            RunError: the run keeps statistics only.
            BadShardError: rows lie in the shard of another prompt.
        """
        rows = self._of(next(iter(self.streams)))
        names = ("prompt", "position", "token_id")
        columns = {name: rows.column(name, torch.int32) for name in names}
        return row_index(columns, self.manifest, self.path)

    @cached_property
    def labels(self) -> torch.Tensor | None:
        """Label of every row: int64 class index (-1: none), float32 number (NaN: none), or None at all.

        Raises:
            RunError: the run keeps statistics only.
            BadShardError: a stored class index stands for no class.
        """
        label = self.manifest.header.label
        if label.dtype is None:
            return None
        labels = self._of(next(iter(self.streams))).column("label", label.dtype)
        return class_labels(labels, label, self.path)

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
        return row_splits(self.prompts(["split", "n_rows"]), self.n_rows, self.path)

    def statistics(self, stream: Stream, layer_id: int, split: Split | None = None) -> RowStatistics:
        """Statistics of a layer's rows as they were captured: those of one split, or of all.

        Raises:
            RunError: the run has no such stream or layer.
            BadShardError: the statistics can't be read.
        """
        found = self._layer_statistics(stream, layer_id)
        return found.total if split is None else found.splits[SPLITS.index(split)]

    def storage_error(self, stream: Stream, layer_id: int) -> StorageError:
        """How far a layer's stored rows are from the captured ones, over all splits.

        Raises:
            RunError: the run has no such stream or layer, or stores no rows.
            BadShardError: the statistics can't be read.
        """
        error = self._layer_statistics(stream, layer_id).storage_error
        if error is None:
            raise self._no_rows()
        return error

    def _layer_statistics(self, stream: Stream, layer_id: int) -> LayerStatistics:
        if layer_id not in self.layer_ids(stream):
            raise RunError(f"{self.path} holds no layer {layer_id} of {stream}: {self.layer_ids(stream)}")
        return read_statistics(self.path / layout.STATISTICS, (stream, layer_id))

    def _of(self, stream: Stream) -> StreamRows:
        self.layer_ids(stream)
        if stream not in self._rows:
            raise self._no_rows()
        return self._rows[stream]

    def _no_rows(self) -> RunError:
        return RunError(
            f"{self.path} keeps statistics only (it was captured with rows=false), no rows; capture again "
            "with rows=true into another folder to have them"
        )
