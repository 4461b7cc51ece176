"""Sorts the engine's rows into shards, and lets go of each shard when its last prompt is done.

Knows which prompts make a shard; proves and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.wire import Chunk, Sums


@dataclass(frozen=True, slots=True)
class Completion:
    """What is kept of a finished request: of a RequestOutput it is a fraction of the bytes."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class CollectedShard:
    """What came out of the engine for one shard.

    Attributes:
        number: the shard's number.
        store: where its rows are put as they arrive; None where it is not known how many come.
        chunks: rows that have no store, in the order of the engine's steps; those of other shards in the same
            steps among them.
        sums: partial sums, where rows are reduced to their mean; as the chunks.
        completions: prompt index -> what the engine made of it.
        n_bytes: bytes of the shard's own rows.
    """

    number: int
    store: RowStore | None = None
    chunks: list[Chunk] = field(default_factory=list)
    sums: list[Sums] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)
    n_bytes: int = 0

    def recorded(self) -> Recorded:
        """All of it, once the engine has no more of it."""
        return Recorded(self.chunks if self.store is None else [self.store.finish()], self.sums)


class ShardCollector:
    """Collects rows until a shard is whole.

    Args:
        plan: half-open prompt ranges of the shards; a chunk's `prompt` is a place in the corpus.
        open_store: makes the store of a shard, None where it can have none.
    """

    def __init__(
        self,
        plan: Sequence[tuple[int, int]],
        open_store: Callable[[int], RowStore | None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._open_store = open_store
        self._starts = np.array([start for start, _ in plan])
        self._open: dict[int, CollectedShard] = {}
        self._closed: set[int] = set()

    def add_rows(self, recorded: Recorded) -> None:
        """Take rows in; shards without a store share the chunks that span them: to divide them is to copy."""
        for chunk in recorded.chunks:
            for shard, rows in self._owners(chunk):
                if shard.store is None:
                    shard.chunks.append(chunk)
                else:
                    shard.store.add(chunk, rows)
        for sums in recorded.sums:
            for shard, _ in self._owners(sums):
                shard.sums.append(sums)

    def add_completions(self, finished: Iterable[tuple[int, Completion]]) -> list[int]:
        """Take finished requests in. Returns the shards whose last one was among them, to be let go."""
        complete = []
        for index, completion in finished:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            shard = self.shard(number)
            shard.completions[index] = completion
            start, stop = self._plan[number]
            if len(shard.completions) == stop - start:
                complete.append(number)
        return complete

    def shard(self, number: int) -> CollectedShard:
        """An open shard."""
        if number not in self._open:
            self._open[number] = CollectedShard(number, self._open_store(number))
        return self._open[number]

    def let_go(self, number: int) -> CollectedShard:
        """Give a complete shard away, once all that its engine has recorded of it was added."""
        self._closed.add(number)
        return self._open.pop(number)

    def _owners(self, part: Chunk | Sums) -> Iterator[tuple[CollectedShard, np.ndarray]]:
        """The open shards with rows in it, and the places of these; the shards are told how many bytes."""
        owner = np.searchsorted(self._starts, part.prompt.numpy(), side="right") - 1
        n_bytes = part.n_bytes / max(len(owner), 1)
        for number in np.unique(owner).tolist():
            if number not in self._closed:  # the engine ran a step past the end of a finished prompt
                shard, rows = self.shard(number), np.flatnonzero(owner == number)
                shard.n_bytes += int(len(rows) * n_bytes)
                yield shard, rows
