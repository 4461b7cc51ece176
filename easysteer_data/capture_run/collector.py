"""Sorts the engine's chunks into shards, and lets go of each shard when its last prompt is done.

Knows which prompts make a shard; proves and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from easysteer_data.engine.proof import Recorded
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
        chunks: rows, in the order of the engine's steps; those of other shards in the same steps among them.
        sums: partial sums, where rows are reduced to their mean; as the chunks.
        completions: prompt index -> what the engine made of it.
        n_bytes: bytes of the shard's own rows.
    """

    number: int
    chunks: list[Chunk] = field(default_factory=list)
    sums: list[Sums] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)
    n_bytes: int = 0


class ShardCollector:
    """Collects rows until a shard is whole.

    Args:
        plan: half-open prompt ranges of the shards; a chunk's `prompt` is a place in the corpus.
    """

    def __init__(self, plan: Sequence[tuple[int, int]]) -> None:
        self._plan = plan
        self._starts = np.array([start for start, _ in plan])
        self._open: dict[int, CollectedShard] = {}
        self._closed: set[int] = set()

    def add_rows(self, recorded: Recorded) -> None:
        """Take rows in; shards share the chunks that span them, since a division would copy the rows."""
        for chunk in recorded.chunks:
            for shard in self._owners(chunk):
                shard.chunks.append(chunk)
        for sums in recorded.sums:
            for shard in self._owners(sums):
                shard.sums.append(sums)

    def add_completions(self, finished: Iterable[tuple[int, Completion]]) -> list[int]:
        """Take finished requests in. Returns the shards whose last one was among them, to be let go."""
        complete = []
        for index, completion in finished:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            shard = self._shard(number)
            shard.completions[index] = completion
            start, stop = self._plan[number]
            if len(shard.completions) == stop - start:
                complete.append(number)
        return complete

    def let_go(self, number: int) -> CollectedShard:
        """Give a complete shard away, once all that its engine has recorded of it was added."""
        self._closed.add(number)
        return self._open.pop(number)

    def _shard(self, number: int) -> CollectedShard:
        return self._open.setdefault(number, CollectedShard(number))

    def _owners(self, part: Chunk | Sums) -> Iterator[CollectedShard]:
        """The open shards that have rows in it; they are told how many bytes."""
        owner = np.searchsorted(self._starts, part.prompt.numpy(), side="right") - 1
        n_bytes = part.n_bytes / max(len(owner), 1)
        for number, n_rows in zip(*np.unique(owner, return_counts=True), strict=True):
            if int(number) not in self._closed:  # the engine ran a step past the end of a finished prompt
                shard = self._shard(int(number))
                shard.n_bytes += int(n_rows * n_bytes)
                yield shard
