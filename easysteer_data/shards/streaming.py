"""Rows of one layer streamed from a URL, in equally many batches on every rank. Knows no Lightning.

For data sets that are too large or too far to be mapped; a local run is read faster by `Run.gather`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info
from webdataset.tariterators import group_by_keys, tar_file_expander

from easysteer_data.errors import BadShardError, SettingsError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.prompt_table import read_prompt_table
from easysteer_data.shards.remote_files import RemoteFiles
from easysteer_data.shards.webdataset_stages import decode_safetensors, dequantise_packs
from easysteer_data.types import SPLITS, Split, Stream

Columns = dict[str, torch.Tensor]


class RemoteRun:
    """A finished run at a URL: its manifest and prompts, and its rows as streams."""

    def __init__(self, files: RemoteFiles) -> None:
        self.files = files
        self.manifest = Manifest.from_json(parse_json(files.read(layout.MANIFEST), layout.MANIFEST))

    @cached_property
    def prompt_splits(self) -> NDArray[np.int8]:
        """Split of every prompt, as its place in SPLITS; BadShardError for a table that is none."""
        return np.concatenate([splits for splits, _ in self._tables])

    def n_rows(self, split: Split) -> list[int]:
        """Rows of a split in each shard."""
        code = SPLITS.index(split)
        return [int(n_rows[splits == code].sum()) for splits, n_rows in self._tables]

    def packs(self, entry: ShardEntry, stream: Stream, layer_id: int) -> Iterator[Columns]:
        """One layer's packs of a shard in order: `x` [n, width] as floats, and the labels of the rows."""
        name = layout.tar_name(stream, layer_id, entry.number)
        (file,) = (file for file in entry.files if file.name == name)
        with self.files.open(file) as opened:
            members = tar_file_expander(iter([{"url": name, "stream": opened}]))
            samples = (
                {"safetensors": decode_safetensors(".safetensors", sample["safetensors"])}
                for sample in group_by_keys(members)
            )
            for sample in dequantise_packs(samples):
                columns: Columns = dict(sample["safetensors"])  # type: ignore[call-overload]
                yield {{"rows": "x", "label": "y"}.get(key, key): value for key, value in columns.items()}

    @cached_property
    def _tables(self) -> list[tuple[NDArray[np.int8], NDArray[np.int64]]]:
        """Split and count of rows of each prompt, shard by shard."""
        tables = []
        for entry in self.manifest.shards:
            data = io.BytesIO(self.files.read(layout.prompts_name(entry.number)))
            table = read_prompt_table(data, entry.prompts, ["split", "n_rows"])
            codes = [SPLITS.index(split) if split in SPLITS else -1 for split in table["split"].to_pylist()]
            n_rows = table["n_rows"].to_numpy().astype(np.int64)
            if min(codes, default=0) < 0 or n_rows.min() < 0 or n_rows.sum() != entry.n_rows:
                raise BadShardError(f"{layout.prompts_name(entry.number)}: odd splits or counts of rows")
            tables.append((np.array(codes, dtype=np.int8), n_rows))
        return tables


def plan_batches(n_rows: list[list[int]], batch_size: int) -> list[list[int]]:
    """Batches of each loader process of each rank, of at most `batch_size` rows, equally many on every rank.

    Args:
        n_rows: rank -> rows of each of its processes.
        batch_size: the most rows of a batch.

    Raises:
        SettingsError: some rank has fewer rows than others have batches.
    """
    fewest = [[-(-rows // batch_size) for rows in rank] for rank in n_rows]
    n_batches = max(map(sum, fewest))
    for rank, (rows, batches) in enumerate(zip(n_rows, fewest, strict=True)):
        while sum(batches) < n_batches:
            # The process with the largest batches gets one more, so that all stay alike in size.
            place = max(range(len(rows)), key=lambda i: rows[i] / (batches[i] + 1))
            if batches[place] >= rows[place]:
                raise SettingsError(
                    f"rank {rank} has {sum(rows)} rows for {n_batches} batches: use fewer ranks, more shards"
                    " or a larger batch_size"
                )
            batches[place] += 1
    return fewest


@dataclass
class StreamedRows(IterableDataset[Columns]):
    """Batches of a split, each row once an epoch; for `DataLoader(batch_size=None)`.

    Shards are dealt to ranks and loader processes once, those with most rows first, so that the number of
    batches is known and the same in every epoch. In an epoch each process reads its shards in random order
    and mixes their rows in a buffer. The order is a pure function of (seed, epoch, ranks, processes).

    Attributes:
        run: the run.
        stream: which of its streams.
        layer_id: which layer.
        split: which rows.
        batch_size: the most rows of a batch.
        buffer_rows: rows that are mixed at once in each process.
        seed: of the order; None keeps the stored one.
        n_ranks: processes that train.
        rank: which one this is.
        num_workers: loader processes of every rank, as the DataLoader is told.
        epoch: the epoch until `set_epoch` is called.
    """

    run: RemoteRun
    stream: Stream
    layer_id: int
    split: Split = "train"
    batch_size: int = 256
    buffer_rows: int = 16_384
    seed: int | None = 0
    n_ranks: int = 1
    rank: int = 0
    num_workers: int = 0
    epoch: InitVar[int] = 0

    def __post_init__(self, epoch: int) -> None:
        # Persistent loader processes see it change.
        self._epoch: torch.Tensor = torch.tensor([epoch]).share_memory_()  # type: ignore[no-untyped-call]
        n_units = max(self.num_workers, 1)
        rows = self.run.n_rows(self.split)
        self._shards: list[list[int]] = [[] for _ in range(self.n_ranks * n_units)]
        loads = [0] * len(self._shards)
        for shard in sorted(range(len(rows)), key=lambda number: -rows[number]):
            # Rank by rank first: a rank without rows could not train.
            unit = min(range(len(loads)), key=lambda i: (loads[i], i % n_units, i))
            self._shards[unit].append(shard)
            loads[unit] += rows[shard]
        self._n_rows = [loads[i * n_units : (i + 1) * n_units] for i in range(self.n_ranks)]
        self._n_batches = plan_batches(self._n_rows, self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is iterated over next, in this process and in loader processes."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Batches of this rank, the same on every rank."""
        return sum(self._n_batches[self.rank])

    def __iter__(self) -> Iterator[Columns]:
        """This process's batches."""
        worker = get_worker_info()
        if (worker.num_workers if worker else 0) != self.num_workers:
            raise SettingsError(
                f"the loader must have num_workers={self.num_workers}, as the data set was told"
            )
        place = worker.id if worker else 0
        unit = self.rank * max(self.num_workers, 1) + place
        n_rows, n_batches = self._n_rows[self.rank][place], self._n_batches[self.rank][place]
        random = None if self.seed is None else np.random.default_rng((self.seed, int(self._epoch), unit))
        shards = sorted(self._shards[unit])
        if random is not None:
            random.shuffle(shards)
        buffer = _Buffer(self.buffer_rows, random)
        packs = (pack for number in shards for pack in self._packs(number))
        for batch in range(n_batches):
            size = n_rows * (batch + 1) // n_batches - n_rows * batch // n_batches
            yield buffer.take(size, packs)

    def _packs(self, number: int) -> Iterator[Columns]:
        code = SPLITS.index(self.split)
        for pack in self.run.packs(self.run.manifest.shards[number], self.stream, self.layer_id):
            keep = torch.from_numpy(self.run.prompt_splits[pack["prompt"].numpy()] == code)
            yield {name: values[keep] for name, values in pack.items()}


class _Buffer:
    """Rows of packs, mixed."""

    def __init__(self, n_rows: int, random: np.random.Generator | None) -> None:
        self._n_rows = n_rows
        self._random = random
        self._rows: Columns = {}

    def take(self, size: int, packs: Iterator[Columns]) -> Columns:
        """The next `size` rows, once the buffer is full or the packs are at their end."""
        needed = max(size, self._n_rows)
        fresh = []
        n_held = len(self)
        while n_held < needed and (pack := next(packs, None)) is not None:
            fresh.append(pack)
            n_held += len(pack["prompt"])
        if fresh:
            self._add(fresh)
        if len(self) < size:
            raise BadShardError("a stream has fewer rows than its prompt tables count")
        batch = {name: values[:size].clone() for name, values in self._rows.items()}
        self._rows = {name: values[size:] for name, values in self._rows.items()}
        return batch

    def _add(self, fresh: list[Columns]) -> None:
        parts = [self._rows, *fresh] if self._rows else fresh
        rows = {name: torch.cat([part[name] for part in parts]) for name in fresh[0]}
        if self._random is not None:
            order = torch.from_numpy(self._random.permutation(len(rows["prompt"])))
            rows = {name: values[order] for name, values in rows.items()}
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows["prompt"]) if self._rows else 0
