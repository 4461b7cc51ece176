"""Begins with a shard's layers as they come, while the engine's step still computes the later ones.

A step of many tokens takes long beside one layer of it, and a run's last step is followed by nothing that
its shards could be written beside. What is begun has no effect before the shard's rows are proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.engine.early_rows import EarlyRows
from easysteer_data.engine.wire import StreamShape
from easysteer_data.shards import RunWriter
from easysteer_data.shards.shard_work import ShardWork
from easysteer_data.types import CapturedShard, Stream


@dataclass(slots=True)
class _Begun:
    """A shard whose layers come.

    Attributes:
        rows: of the step that has all of it.
        work: what is begun with it.
        left: stream, place among the ordered layers and id of the layers that have not come.
    """

    rows: EarlyRows
    work: ShardWork
    left: list[tuple[Stream, int, int]]

    def begin_layers(self) -> None:
        """Begin with the layers that have come."""
        left = []
        for stream, place, layer_id in self.left:
            if self.rows.has(stream, place):
                self.work.begin((stream, layer_id))
            else:
                left.append((stream, place, layer_id))
        self.left = left

    @property
    def goes_on(self) -> bool:
        """Whether layers of it may still come."""
        return bool(self.left) and not self.work.has_ended and self.rows.is_current()


class EarlyShards:
    """Takes rows of steps that are still running, in one thread.

    Args:
        shapes: stream -> its layers, in the rows' order.
        plan: the capture; what it has of rows can be foreseen.
        prover: knows what a shard will be.
        writer: of the run.
    """

    def __init__(
        self,
        shapes: Mapping[Stream, StreamShape],
        plan: CapturePlan,
        prover: ShardProver,
        writer: RunWriter,
    ) -> None:
        self._shapes = shapes
        self._n_rows = [sum(plan.n_rows[start:stop]) for start, stop in writer.header.plan]
        self._prover = prover
        self._writer = writer
        self._starts = np.array([start for start, _ in writer.header.plan])
        self._begun: list[_Begun] = []

    @staticmethod
    def can_foresee(plan: CapturePlan) -> bool:
        """Whether a run's rows are known before it: they are of prompt tokens only, each by itself."""
        return plan.settings.capture.max_tokens == 1 and plan.selection.reduce is None

    def __call__(self, new: Sequence[EarlyRows]) -> None:
        """Look at the rows of steps that have begun, and at what has come of those before them."""
        for rows in new:
            self._begun.extend(self._whole_shards(rows))
        for begun in self._begun:
            begun.begin_layers()
        self._begun = [begun for begun in self._begun if begun.goes_on]

    def _whole_shards(self, rows: EarlyRows) -> Iterator[_Begun]:
        """The shards of which a block has all rows, side by side and in order."""
        owner = np.searchsorted(self._starts, rows.prompt.numpy(), side="right") - 1
        for number in np.unique(owner).tolist():
            places = np.flatnonzero(owner == number)
            first, stop = int(places[0]), int(places[-1]) + 1
            if stop - first == len(places) == self._n_rows[number]:
                shard = self._foreseen(number, rows, slice(first, stop))
                work = None if shard is None else self._writer.begin(shard, rows.is_current)
                if work is not None:
                    yield _Begun(rows, work, self._layers())

    def _foreseen(self, number: int, rows: EarlyRows, part: slice) -> CapturedShard | None:
        """The shard whose rows a part of a block will be; None where they are not all of it."""
        values = {
            stream: {
                layer_id: layer[part]
                for layer_id, layer in zip(shape.layer_ids, rows.values[stream], strict=True)
            }
            for stream, shape in self._shapes.items()
        }
        shard = self._prover.foreseen(number, range(*self._writer.header.plan[number]), values)
        labels = zip((shard.index.prompt, shard.index.position), (rows.prompt, rows.position), strict=True)
        return shard if all(np.array_equal(a.numpy(), b[part].numpy()) for a, b in labels) else None

    def _layers(self) -> list[tuple[Stream, int, int]]:
        return [
            (stream, place, layer_id)
            for stream, shape in self._shapes.items()
            for place, layer_id in enumerate(shape.layer_ids)
        ]
