"""The files of one shard, each whole or absent, in any folder: a run's own or one on the way to it.

Commits nothing: whoever keeps the run's journal does. Knows no engine and no corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from easysteer_data.shards import layout
from easysteer_data.shards.check import check_shard
from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, index_bytes
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.layer_work import WrittenLayer
from easysteer_data.shards.prompt_table import prompt_table_bytes
from easysteer_data.shards.shard_work import ShardWork, remove_files
from easysteer_data.shards.space import check_space, shard_bytes, write_failures_explained
from easysteer_data.shards.statistics import LayerStatistics
from easysteer_data.shards.statistics_file import statistics_bytes
from easysteer_data.shards.storage import StorageError
from easysteer_data.types import CapturedShard


def make_folders(out: Path, header: RunHeader) -> None:
    """Make every folder that a run's shards lie in."""
    for name in layout.folders(header.tar_layers):
        make_folder(out / name)


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose files are there.

    Attributes:
        entry: the record of its files, for the journal.
        statistics: what its statistics file holds.
    """

    entry: ShardEntry
    statistics: Mapping[LayerKey, LayerStatistics]


def write_shard(
    out: Path, header: RunHeader, shard: CapturedShard, min_free_bytes: int = 0, work: ShardWork | None = None
) -> WrittenShard:
    """Write one shard's files; rows are converted to the storage type.

    Args:
        out: a folder that `make_folders` has made ready.
        header: the run's header.
        shard: the rows as captured.
        min_free_bytes: bytes of the file system that the shard must leave free; 0 = no check.
        work: what has begun with it already, for which there was room. If it is of other rows, its files are
            written anew.

    Raises:
        RunError: the shard is not as planned, or the disk is full or fails.
        ProofError: a row is not finite, or overflows the storage type.
    """
    if work is not None and not work.is_of(shard):
        with write_failures_explained(out):
            work.drop()
        work = None
    if work is None:
        check_shard(shard, header)
        if min_free_bytes:
            check_space(out, shard_bytes(header, len(shard.index)), min_free_bytes)
    try:
        with write_failures_explained(out), work or ShardWork(out, header, shard) as begun:
            begun.finish()
            return _written(out, header, shard, begun)
    except BaseException:
        remove_files(out, header, shard.number)
        raise


def write_file(out: Path, name: str, data: bytes) -> FileEntry:
    """Write a small file of a run durably."""
    file = write_durably(out / name, data)
    return FileEntry(name, file.n_bytes, file.sha256)


def _written(out: Path, header: RunHeader, shard: CapturedShard, work: ShardWork) -> WrittenShard:
    prompts = prompt_table_bytes(shard.prompts, header.label)
    files = [write_file(out, layout.prompts_name(shard.number), prompts)]
    layers = work.result()
    statistics = {key: _with_error(layer) for key, layer in layers.items()}
    files.append(write_file(out, layout.statistics_name(shard.number), statistics_bytes(statistics)))
    tars = {key: layer.tar for key, layer in layers.items() if layer.tar is not None}
    if tars:
        index = index_bytes(shard.number, work.packs, {key: tar.spans for key, tar in tars.items()})
        files.append(write_file(out, layout.index_name(shard.number), index))
    tar_files = [FileEntry(tar.name, tar.n_bytes, tar.sha256) for tar in tars.values()]
    prompt_range = header.plan[shard.number]
    entry = ShardEntry(shard.number, prompt_range, len(shard.index), (*tar_files, *files))
    return WrittenShard(entry, statistics)


def _with_error(layer: WrittenLayer) -> LayerStatistics:
    if layer.tar is None:
        return LayerStatistics(layer.splits, None)
    n_rows, sum_square = sum(s.n_rows for s in layer.splits), sum(s.sum_square for s in layer.splits)
    return LayerStatistics(layer.splits, layer.tar.error or StorageError(n_rows, sum_square))
