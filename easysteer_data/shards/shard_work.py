"""A shard on its way into files, layer by layer: also while rows of later layers have not come yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import torch

from easysteer_data.shards import layout
from easysteer_data.shards.durable import partial_name
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, layer_keys
from easysteer_data.shards.labels import row_labels
from easysteer_data.shards.layer_tar import LayerTarWriter
from easysteer_data.shards.layer_work import LayerWork, WrittenLayer
from easysteer_data.shards.measure import group_rows
from easysteer_data.shards.pack import packs_of
from easysteer_data.shards.side_by_side import SideBySide
from easysteer_data.types import CapturedShard, RowIndex


class ShardWork:
    """Writes the layers of a shard; a context, at whose end none of it goes on.

    Attributes:
        packs: how the shard is divided.

    Args:
        out: a folder that `make_folders` has made ready.
        header: the run's.
        shard: labels and memory of its rows; a layer's need not be there before `begin`. What the prompts'
            completions are does not matter here.
        is_current: whether the memory has held nothing but these rows since.
    """

    def __init__(
        self,
        out: Path,
        header: RunHeader,
        shard: CapturedShard,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.packs = packs_of(shard, header)
        self._out, self._header, self._shard = out, header, shard
        self._is_current = is_current
        labels = row_labels(shard.prompts, header.label)
        self._writer = LayerTarWriter(out, header, shard, self.packs, labels)
        self._groups = group_rows(shard.prompts, header.label)
        self._beside = SideBySide()
        self._layers: dict[LayerKey, LayerWork] = {}
        self._ended = False
        self._lock = Lock()

    def begin(self, key: LayerKey) -> None:
        """Begin with a layer whose rows are there; nothing happens if it has begun, or the work has ended.

        Its file has a temporary name until `finish`.
        """
        with self._lock:
            if key not in self._layers and not self._ended:
                layer = self._layers[key] = LayerWork(self._writer, key, self._groups, self._beside)
                layer.start()

    def is_of(self, shard: CapturedShard) -> bool:
        """Whether these are the rows that are written: the same labels, in memory that was theirs alone."""
        ours = self._shard
        return (
            shard.number == ours.number
            and [(p.prompt, p.n_rows) for p in shard.prompts] == [(p.prompt, p.n_rows) for p in ours.prompts]
            and _same_labels(shard.index, ours.index)
            and _places(shard) == _places(ours)
            and self._is_current()
        )

    @property
    def has_ended(self) -> bool:
        """Whether none of it goes on."""
        return self._ended

    def finish(self) -> None:
        """Say that the rows are proven; begin with the layers that have not begun."""
        for key in layer_keys(self._header.layers):
            self.begin(key)
            self._layers[key].approve()

    def result(self) -> dict[LayerKey, WrittenLayer]:
        """Wait for all layers, after `finish`; raises as `LayerWork.result`."""
        return {key: self._layers[key].result() for key in layer_keys(self._header.layers)}

    def drop(self) -> None:
        """End it and remove its files."""
        try:
            self._end()
        finally:
            remove_files(self._out, self._header, self._shard.number)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        with ExitStack() as last:  # all of it, also where one fails
            for layer in self._layers.values():
                last.callback(layer.discard)
            last.callback(self._beside.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
        except OSError as failed:
            if error is None:
                raise
            error.add_note(f"and then: {failed}")


def remove_files(out: Path, header: RunHeader, number: int) -> None:
    """Remove what was written of a shard that will not be whole."""
    names = [layout.tar_name(*key, number) for key in layer_keys(header.tar_layers)]
    names += [layout.prompts_name(number), layout.statistics_name(number), layout.index_name(number)]
    for path in (out / name for name in names):
        for written in (path, partial_name(path)):
            with suppress(OSError):
                written.unlink()


def _same_labels(one: RowIndex, other: RowIndex) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in RowIndex.__dataclass_fields__
    )


def _places(shard: CapturedShard) -> dict[LayerKey, tuple[object, ...]]:
    """Where the rows of each layer lie, and how."""
    return {
        (stream, layer_id): (rows.data_ptr(), rows.dtype, tuple(rows.shape), rows.stride())
        for stream, layers in shard.values.items()
        for layer_id, rows in layers.items()
    }
