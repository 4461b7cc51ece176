"""Rows of one layer streamed from a URL, in equally many batches on every rank. Knows no Lightning.

For data sets that are too large or too far to be mapped; a local run is read faster by `Run.gather`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from easysteer_data.errors import BadShardError, SettingsError
from easysteer_data.shards.remote_run import Columns, RemoteRun
from easysteer_data.types import Stream


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
    """Batches of chosen rows, each row once an epoch; for `DataLoader(batch_size=None)`.

    Shards are dealt to ranks and loader processes once, those with most rows first, so that the number of
    batches is known and the same in every epoch. In an epoch each process reads its shards in random order
    and mixes their rows in a buffer. The order is a pure function of (seed, epoch, ranks, processes).

    Attributes:
        run: the run.
        stream: which of its streams.
        layer_id: which layer.
        chosen: bool [n_rows of the run], the rows to serve.
        batch_size: the most rows of a batch.
        buffer_rows: rows that are mixed at once in each process.
        seed: of the order; None keeps the stored one.
        n_ranks: processes that train.
        rank: which one this is.
        num_workers: loader processes of every rank, as the DataLoader is told.
    """

    run: RemoteRun
    stream: Stream
    layer_id: int
    chosen: NDArray[np.bool_]
    batch_size: int = 256
    buffer_rows: int = 16_384
    seed: int | None = 0
    n_ranks: int = 1
    rank: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        # Epoch, and batches of it that are done; persistent loader processes see them change.
        self._begin: torch.Tensor = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._first_rows = [0, *accumulate(entry.n_rows for entry in self.run.manifest.shards)]
        rows = [int(self.chosen[self._rows_of(number)].sum()) for number in range(len(self._first_rows) - 1)]
        n_units = max(self.num_workers, 1)
        self._shards: list[list[int]] = [[] for _ in range(self.n_ranks * n_units)]
        loads = [0] * len(self._shards)
        # Not webdataset's split_by_node and split_by_worker: they take every n-th shard, however many rows it
        # has, so that ranks would end with unequal numbers of batches and wait for each other for ever.
        for shard in sorted(filter(rows.__getitem__, range(len(rows))), key=lambda number: -rows[number]):
            # Rank by rank first: a rank without rows could not train.
            unit = min(range(len(loads)), key=lambda i: (loads[i], i % n_units, i))
            self._shards[unit].append(shard)
            loads[unit] += rows[shard]
        self._n_rows = [loads[i * n_units : (i + 1) * n_units] for i in range(self.n_ranks)]
        self._n_batches = plan_batches(self._n_rows, self.batch_size)

    def begin_at(self, epoch: int, n_done: int = 0) -> None:
        """Say what comes next, here and in loader processes: an epoch without the batches that are done."""
        self._begin.copy_(torch.tensor([epoch, n_done]))

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, the same on every rank."""
        return sum(self._n_batches[self.rank])

    def __iter__(self) -> Iterator[Columns]:
        """This process's batches; those that are done are read once more and left out."""
        worker = get_worker_info()
        if (worker.num_workers if worker else 0) != self.num_workers:
            raise SettingsError(
                f"the loader must have num_workers={self.num_workers}, as the data set was told"
            )
        epoch, n_done = self._begin.tolist()
        turns = process_of_each(self._n_batches[self.rank])
        # The loader asks its first process first: that one stands in for whichever is next.
        order = [*dict.fromkeys([*turns[n_done:], *range(max(self.num_workers, 1))])]
        place = order[worker.id if worker else 0]
        return islice(self._batches(place, epoch), turns[:n_done].count(place), None)

    def _batches(self, place: int, epoch: int) -> Iterator[Columns]:
        """One loader process's batches of a whole epoch."""
        unit = self.rank * max(self.num_workers, 1) + place
        n_rows, n_batches = self._n_rows[self.rank][place], self._n_batches[self.rank][place]
        random = None if self.seed is None else np.random.default_rng((self.seed, epoch, unit))
        shards = sorted(self._shards[unit])
        if random is not None:
            random.shuffle(shards)
        buffer = _Buffer(self.buffer_rows, random)
        packs = (pack for number in shards for pack in self._packs(number))
        for batch in range(n_batches):
            size = n_rows * (batch + 1) // n_batches - n_rows * batch // n_batches
            yield buffer.take(size, packs)

    def _packs(self, number: int) -> Iterator[Columns]:
        """The chosen rows of a shard, pack by pack."""
        chosen = torch.from_numpy(self.chosen[self._rows_of(number)])
        first = 0
        for pack in self.run.packs(self.run.manifest.shards[number], self.stream, self.layer_id):
            keep = chosen[first : first + len(pack["prompt"])]
            if len(keep) < len(pack["prompt"]):
                raise BadShardError(f"{self.run.path}: shard {number} has more rows than the manifest counts")
            first += len(keep)
            yield {name: values[keep] for name, values in pack.items()}

    def _rows_of(self, number: int) -> slice:
        """A shard's rows among those of the run."""
        return slice(self._first_rows[number], self._first_rows[number + 1])


def process_of_each(n_batches: list[int]) -> list[int]:
    """Which loader process each batch of a DataLoader comes from, where they have `n_batches` each.

    It takes one batch of each in turn, and passes over those that have given all of theirs.
    """
    turn = np.concatenate([np.arange(n) for n in n_batches])
    process = np.repeat(np.arange(len(n_batches)), n_batches)
    return process[np.lexsort((process, turn))].tolist()  # type: ignore[no-any-return]


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
            raise BadShardError("a stream has fewer rows than the manifest counts")
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
