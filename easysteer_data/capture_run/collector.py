"""Sorts the engine's chunks into shards, and lets go of each shard when its last prompt is done.

Knows which prompts make a shard; proves and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.wire import Chunk, Sums

_Part = TypeVar("_Part", Chunk, Sums)


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
        chunks: rows, in the order of the engine's steps.
        sums: partial sums, where rows are reduced to their mean.
        completions: prompt index -> what the engine made of it.
    """

    number: int
    chunks: list[Chunk] = field(default_factory=list)
    sums: list[Sums] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows that it holds."""
        values = [part.values for part in self.chunks] + [part.values for part in self.sums]
        return sum(tensor.nbytes for streams in values for tensor in streams.values())


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
        """Take rows in; a chunk that spans shards is divided."""
        for chunk in recorded.chunks:
            for number, part in self._divide(chunk):
                self._shard(number).chunks.append(part)
        for sums in recorded.sums:
            for number, part_of_sums in self._divide(sums):
                self._shard(number).sums.append(part_of_sums)

    def add_completions(self, finished: Iterable[tuple[int, Completion]]) -> Iterator[CollectedShard]:
        """Take finished requests in; their rows must have been added. Yields the shards that became whole."""
        for index, completion in finished:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            shard = self._shard(number)
            shard.completions[index] = completion
            start, stop = self._plan[number]
            if len(shard.completions) == stop - start:
                self._closed.add(number)
                yield self._open.pop(number)

    def _shard(self, number: int) -> CollectedShard:
        return self._open.setdefault(number, CollectedShard(number))

    def _divide(self, part: _Part) -> Iterator[tuple[int, _Part]]:
        owner = np.searchsorted(self._starts, part.prompt.numpy(), side="right") - 1
        numbers = np.unique(owner).tolist()
        for number in numbers:
            if number not in self._closed:  # the engine ran a step past the end of a finished prompt
                mask = torch.from_numpy(owner == number)
                yield number, part if len(numbers) == 1 else part.where(mask)
