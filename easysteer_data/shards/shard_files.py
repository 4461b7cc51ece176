"""The files of one shard, each whole or absent, in any folder: a run's own or one on the way to it.

Commits nothing: whoever keeps the run's journal does. Knows no engine and no corpus.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from easysteer_data.shards import layout
from easysteer_data.shards.check import check_shard, check_values
from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, index_bytes, layer_keys
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.labels import row_labels
from easysteer_data.shards.layer_tar import LayerTar, LayerTarWriter
from easysteer_data.shards.measure import SplitSums, group_rows, parts_of, statistics_of, sum_part
from easysteer_data.shards.pack import packs_of
from easysteer_data.shards.prompt_table import prompt_table_bytes
from easysteer_data.shards.side_by_side import side_by_side
from easysteer_data.shards.space import check_space, shard_bytes, write_failures_explained
from easysteer_data.shards.statistics import LayerStatistics, RowStatistics
from easysteer_data.shards.statistics_file import statistics_bytes
from easysteer_data.shards.storage import StorageError
from easysteer_data.types import CapturedShard


def make_folders(out: Path, header: RunHeader) -> None:
    """Make every folder that a run's shards lie in."""
    for name in layout.folders(header.tar_layers):
        make_folder(out / name)


def write_shard(out: Path, header: RunHeader, shard: CapturedShard, min_free_bytes: int = 0) -> ShardEntry:
    """Write one shard's files; rows are converted to the storage type.

    Args:
        out: a folder that `make_folders` has made ready.
        header: the run's header.
        shard: the rows as captured.
        min_free_bytes: bytes of the file system that the shard must leave free; 0 = no check.

    Returns:
        The record of the files, for the journal.

    Raises:
        RunError: the shard is not as planned, or the disk is full or fails.
        ProofError: a row is not finite, or overflows the storage type.
    """
    check_shard(shard, header)
    if min_free_bytes:
        check_space(out, shard_bytes(header, len(shard.index)), min_free_bytes)
    with write_failures_explained(out):
        files = _write_files(out, header, shard)
    return ShardEntry(shard.number, header.plan[shard.number], len(shard.index), files)


def write_file(out: Path, name: str, data: bytes) -> FileEntry:
    """Write a small file of a run durably."""
    file = write_durably(out / name, data)
    return FileEntry(name, file.n_bytes, file.sha256)


def _write_files(out: Path, header: RunHeader, shard: CapturedShard) -> tuple[FileEntry, ...]:
    number, label = shard.number, header.label
    measured = _measure(header, shard)  # all layers are proven before a file is written
    prompts = prompt_table_bytes(shard.prompts, label)
    packs = packs_of(shard, header)
    writer = LayerTarWriter(out, header, shard, packs, row_labels(shard.prompts, label))
    tars = dict(side_by_side(writer.write, layer_keys(header.tar_layers)))
    statistics = {key: _with_error(splits, tars.get(key)) for key, splits in measured.items()}
    files = [tar.file for tar in tars.values()]
    files.append(write_file(out, layout.prompts_name(number), prompts))
    files.append(write_file(out, layout.statistics_name(number), statistics_bytes(statistics)))
    if tars:
        spans = {key: tar.spans for key, tar in tars.items()}
        files.append(write_file(out, layout.index_name(number), index_bytes(number, packs, spans)))
    return tuple(files)


def _measure(header: RunHeader, shard: CapturedShard) -> dict[LayerKey, tuple[RowStatistics, ...]]:
    """Statistics of each layer's rows by split, all of them such that they can be stored."""
    groups, keys = group_rows(shard.prompts, header.label), layer_keys(header.layers)

    def sums(job: tuple[LayerKey, range]) -> list[SplitSums]:
        (stream, layer_id), part = job
        return sum_part(shard.values[stream][layer_id], groups, header.label.n_class_means, part)

    jobs = [(key, part) for key in keys for part in parts_of(len(shard.index), header.streams[key[0]].width)]
    measured = {}
    for key, found in groupby(side_by_side(sums, jobs), lambda done: done[0][0]):
        splits = statistics_of(part for _, part in found)
        storage = header.streams[key[0]].torch_dtype if header.rows else None
        check_values(shard, key, float(np.max([split.max_abs for split in splits])), storage)
        measured[key] = splits
    return measured


def _with_error(splits: tuple[RowStatistics, ...], tar: LayerTar | None) -> LayerStatistics:
    if tar is None:
        return LayerStatistics(splits, None)
    n_rows, sum_square = sum(s.n_rows for s in splits), sum(s.sum_square for s in splits)
    return LayerStatistics(splits, tar.error or StorageError(n_rows, sum_square))
