"""A finished run at a URL: what it is, which rows it has, and these as streams. Maps nothing.

Answers what Run answers of rows and prompts, so that whoever chooses rows need not know where they lie.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from webdataset.tariterators import group_by_keys, tar_file_expander

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json
from easysteer_data.shards.index import read_index
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.prompt_table import read_prompt_table
from easysteer_data.shards.remote_files import RemoteFiles
from easysteer_data.shards.row_columns import class_labels, row_index, row_splits
from easysteer_data.shards.statistics import RowStatistics
from easysteer_data.shards.statistics_file import statistics_of
from easysteer_data.shards.webdataset_stages import decode_safetensors, dequantise_packs
from easysteer_data.types import SPLITS, RowIndex, Split, Stream

Columns = dict[str, torch.Tensor]

_N_AT_ONCE = 16  # small requests on their way; a store answers each in tens of milliseconds


class RemoteRun:
    """A finished run at a URL.

    Attributes:
        files: the run folder.
        path: its URL.
        manifest: what the run is and which files it has.
        n_rows: rows of every layer.
    """

    def __init__(self, files: RemoteFiles) -> None:
        self.files = files
        self.path = files.root
        self.manifest = Manifest.from_json(parse_json(files.read(layout.MANIFEST), layout.MANIFEST))
        self.n_rows = self.manifest.n_rows

    def __getstate__(self) -> dict[str, object]:
        # Loader processes are told which rows to keep; they need no label of the others.
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}

    def packs(self, entry: ShardEntry, stream: Stream, layer_id: int) -> Iterator[Columns]:
        """One layer's packs of a shard in order: `x` [n, width] as floats, and the labels of the rows."""
        file = _listed(entry, layout.tar_name(stream, layer_id, entry.number))
        with self.files.open(file) as opened:
            members = tar_file_expander(iter([{"url": file.name, "stream": opened}]))
            samples = (
                {"safetensors": decode_safetensors(".safetensors", sample["safetensors"])}
                for sample in group_by_keys(members)
            )
            for sample in dequantise_packs(samples):
                columns: Columns = dict(sample["safetensors"])  # type: ignore[call-overload]
                yield {{"rows": "x", "label": "y"}.get(key, key): value for key, value in columns.items()}

    def prompts(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The prompt table of the whole run, in order: all columns of prompt_table.SCHEMA, or some.

        Raises:
            BadShardError: a table is missing, can't be read or is not of its shard's prompts.
        """

        def table(entry: ShardEntry) -> pa.Table:
            data = io.BytesIO(self.files.read(layout.prompts_name(entry.number)))
            return read_prompt_table(data, entry.prompts, columns)

        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            return pa.concat_tables(pool.map(table, self.manifest.shards))

    def row_splits(self) -> NDArray[np.int8]:
        """Split of every row, as its place in SPLITS; BadShardError where the prompt tables make no sense."""
        return row_splits(self.prompts(["split", "n_rows"]), self.n_rows, self.path)

    @property
    def index(self) -> RowIndex:
        """Prompt, position and token of every row; reads 12 to 20 bytes a row when first asked for.

        Raises:
            BadShardError: rows lie in the shard of another prompt, or a file is not as its index says.
        """
        return row_index(self._columns, self.manifest, self.path)

    @property
    def labels(self) -> torch.Tensor | None:
        """Label of every row, see Run; read with the index.

        Raises:
            BadShardError: a stored class index stands for no class.
        """
        if self.manifest.header.label.dtype is None:
            return None
        return class_labels(self._columns["label"], self.manifest.header.label, self.path)

    def statistics(self, stream: Stream, layer_id: int, split: Split) -> RowStatistics:
        """Statistics of a layer's rows of one split, as they were captured.

        Raises:
            BadShardError: the statistics can't be read.
        """
        try:
            tensors = safetensors.torch.load(self._whole(self.manifest.statistics))
        except safetensors.SafetensorError as error:
            raise BadShardError(f"{self.path}/{layout.STATISTICS}: can't be read ({error})") from error
        found = statistics_of(tensors, (stream, layer_id), self.path)
        return found.splits[SPLITS.index(split)]

    @cached_property
    def _columns(self) -> Columns:
        """Labels of all rows, without the rows that lie between them."""
        dtypes = {"prompt": torch.int32, "position": torch.int32, "token_id": torch.int32}
        if self.manifest.header.label.dtype is not None:
            dtypes["label"] = self.manifest.header.label.dtype
        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            shards = [*pool.map(lambda entry: self._columns_of(entry, [*dtypes]), self.manifest.shards)]
        joined = {name: bytearray().join(shard[name] for shard in shards) for name in dtypes}
        return {
            name: torch.from_numpy(np.frombuffer(data, dtype=np.uint8)).view(dtypes[name])
            for name, data in joined.items()
        }

    def _columns_of(self, entry: ShardEntry, names: Sequence[str]) -> dict[str, bytes]:
        """The bytes of one shard's labels, alike in every layer."""
        stream, layer_ids = next(iter(self.manifest.header.tar_layers.items()))
        name = layout.index_name(entry.number)
        record = parse_json(self._whole(_listed(entry, name)), name)
        spans = read_index(record, self.manifest.header, entry).spans[stream, layer_ids[0]]
        placed = np.stack([spans[name] for name in names], axis=1)  # [packs, names, 2]
        firsts = placed[:, :, 0].min(axis=1)
        lasts = placed.sum(axis=2).max(axis=1)
        tar = _listed(entry, layout.tar_name(stream, layer_ids[0], entry.number))
        packs = self.files.ranges(tar, list(zip(firsts.tolist(), lasts.tolist(), strict=True)))
        offsets = placed[:, :, 0] - firsts[:, None]
        return {
            name: b"".join(
                pack[start : start + size]
                for pack, start, size in zip(
                    packs, offsets[:, column].tolist(), placed[:, column, 1].tolist(), strict=True
                )
            )
            for column, name in enumerate(names)
        }

    def _whole(self, entry: FileEntry) -> bytes:
        """A small file that the manifest lists; BadShardError if it is another one."""
        data = self.files.range(entry, 0, entry.n_bytes)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise BadShardError(f"{self.path}/{entry.name}: altered, its sha256 is not the manifest's")
        return data


def _listed(entry: ShardEntry, name: str) -> FileEntry:
    """A shard's file as the manifest lists it.

    Raises:
        RunError: the run keeps statistics only, so that there is no such file.
    """
    found = [file for file in entry.files if file.name == name]
    if not found:
        raise RunError(f"the run has no {name}: it keeps statistics only, or another set of layers")
    return found[0]
