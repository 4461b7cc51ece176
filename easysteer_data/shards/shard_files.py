"""The files of one shard, each whole or absent, in any folder: a run's own or one on the way to it.

Commits nothing: whoever keeps the run's journal does. Knows no engine and no corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
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
from easysteer_data.shards.side_by_side import SideBySide
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
    try:
        with write_failures_explained(out):
            files = _write_files(out, header, shard)
    except BaseException:
        _remove_files(out, header, shard.number)
        raise
    return ShardEntry(shard.number, header.plan[shard.number], len(shard.index), files)


def write_file(out: Path, name: str, data: bytes) -> FileEntry:
    """Write a small file of a run durably."""
    file = write_durably(out / name, data)
    return FileEntry(name, file.n_bytes, file.sha256)


def _write_files(out: Path, header: RunHeader, shard: CapturedShard) -> tuple[FileEntry, ...]:
    files = []
    with SideBySide() as beside:
        sums = _sum_layers(header, shard, beside)
        packs = packs_of(shard, header)
        writer = LayerTarWriter(out, header, shard, packs, row_labels(shard.prompts, header.label))
        measured, writing, digests = {}, {}, {}
        for key, parts in sums.items():  # each layer is proven before its file is written
            measured[key] = _statistics(header, shard, key, parts)
            if not header.rows:
                continue
            if hashed_apart := writer.stores_as_captured(key):
                digests[key] = beside.submit(writer.digest, key)
            writing[key] = beside.submit(writer.write, key, hashed=not hashed_apart)
        prompts = prompt_table_bytes(shard.prompts, header.label)
        files.append(write_file(out, layout.prompts_name(shard.number), prompts))
        tars = {key: tar.result() for key, tar in writing.items()}
        hashes = {key: tar.sha256 or digests[key].result() for key, tar in tars.items()}
    statistics = {key: _with_error(splits, tars.get(key)) for key, splits in measured.items()}
    files.append(write_file(out, layout.statistics_name(shard.number), statistics_bytes(statistics)))
    if tars:
        spans = {key: tar.spans for key, tar in tars.items()}
        index = index_bytes(shard.number, packs, spans)
        files.append(write_file(out, layout.index_name(shard.number), index))
    return (*(FileEntry(tar.name, tar.n_bytes, hashes[key]) for key, tar in tars.items()), *files)


def _sum_layers(
    header: RunHeader, shard: CapturedShard, beside: SideBySide
) -> dict[LayerKey, list[Future[list[SplitSums]]]]:
    """Begin to sum each layer's rows, in parts."""
    groups = group_rows(shard.prompts, header.label)
    sums = {}
    for key in layer_keys(header.layers):
        stream, layer_id = key
        rows, parts = shard.values[stream][layer_id], parts_of(len(shard.index), header.streams[stream].width)
        sums[key] = [
            beside.submit(sum_part, rows, groups, header.label.n_class_means, part) for part in parts
        ]
    return sums


def _statistics(
    header: RunHeader, shard: CapturedShard, key: LayerKey, parts: Sequence[Future[list[SplitSums]]]
) -> tuple[RowStatistics, ...]:
    """Statistics of a layer's rows by split, all of them such that they can be stored."""
    splits = statistics_of(part.result() for part in parts)
    storage = header.streams[key[0]].torch_dtype if header.rows else None
    check_values(shard, key, float(np.max([split.max_abs for split in splits])), storage)
    return splits


def _remove_files(out: Path, header: RunHeader, number: int) -> None:
    """Remove what was written of a shard that will not be whole."""
    names = [layout.tar_name(*key, number) for key in layer_keys(header.tar_layers)]
    for name in (
        *names,
        layout.prompts_name(number),
        layout.statistics_name(number),
        layout.index_name(number),
    ):
        with suppress(OSError):
            (out / name).unlink()


def _with_error(splits: tuple[RowStatistics, ...], tar: LayerTar | None) -> LayerStatistics:
    if tar is None:
        return LayerStatistics(splits, None)
    n_rows, sum_square = sum(s.n_rows for s in splits), sum(s.sum_square for s in splits)
    return LayerStatistics(splits, tar.error or StorageError(n_rows, sum_square))
