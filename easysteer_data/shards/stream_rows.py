"""The rows of one stream across all shards, gathered from mapped files. Knows places, not what rows mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.index import ShardIndex
from easysteer_data.shards.manifest import Manifest
from easysteer_data.shards.region import FileRegion
from easysteer_data.shards.storage import StoredRows, decode
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """B rows of L layers whose places in mapped files are known.

    Attributes:
        n_layers: L.
        windows: [n, width] in the storage dtype, every place where a row could start.
        places: int64 [B * L], which of them are the rows, layer by layer within a row.
        scales: float32 [n], every place where a scale could be; None where rows have none.
        scale_places: int64 [B * L], which of them are the rows' scales.
    """

    n_layers: int
    windows: torch.Tensor
    places: torch.Tensor
    scales: torch.Tensor | None = None
    scale_places: torch.Tensor | None = None

    def parts(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Copy the rows out of the files, the next `sizes[i]` of the B at a time.

        Yields:
            [sizes[i] * L, width] in the storage dtype, layer by layer within a row; float32, multiplied by
            their scales, where there are scales.
        """
        counts = [size * self.n_layers for size in sizes]
        places = torch.split(self.places, counts)  # a view by slicing costs three times as much
        if self.scales is None or self.scale_places is None:
            for part in places:
                yield self.windows.index_select(0, part)
            return
        for part, of_scale in zip(places, torch.split(self.scale_places, counts), strict=True):
            values, scale = self.windows.index_select(0, part), self.scales.index_select(0, of_scale)
            yield decode(StoredRows(values, scale))


class StreamRows:
    """Rows 0 to n of one stream, in order of (prompt, position).

    A layer's files are mapped when it is first read. A pickled copy, such as a spawned loader worker's, maps
    them anew.
    """

    def __init__(self, run: Path, manifest: Manifest, stream: Stream, shards: Sequence[ShardIndex]) -> None:
        self._run = run
        self._manifest = manifest
        self._stream = stream
        self._shards = tuple(shards)
        self._header = manifest.header.streams[stream]
        n_pack_rows = [pack.n_rows for shard in shards for pack in shard.packs]
        self._n_pack_rows = np.array(n_pack_rows, dtype=np.int64)
        self._first_rows: NDArray[np.int64] = np.cumsum([0, *n_pack_rows])[:-1]
        self._n_rows = manifest.n_rows
        # Tensor and layer id -> for each pack, the element at which row 0 would lie if it went back so far.
        self._starts: dict[tuple[str, int], NDArray[np.int64]] = {}

    def __getstate__(self) -> dict[str, object]:
        cached = ("_region", "_windows", "_pack_of_row")
        state = {name: value for name, value in self.__dict__.items() if name not in cached}
        return {**state, "_starts": {}}

    def gather(self, layer_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Copy rows out of the files, [B, L, width]: all of what `locate` finds."""
        (values,) = self.locate(layer_ids, rows).parts([len(rows)])
        return values.view(len(rows), len(layer_ids), self._header.width)

    def locate(self, layer_ids: Sequence[int], rows: torch.Tensor) -> LocatedRows:
        """Find where rows lie, so that they can be copied in parts.

        Args:
            layer_ids: L stored layers, in any order.
            rows: int64 [B], numbers of rows, in any order, repeated or not.

        Raises:
            RunError: the run does not store such a layer.
            IndexError: there is no such row.
            BadShardError: a file of the layer is gone or has another size.
        """
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise TypeError(f"rows must be int64 [B], found {rows.dtype} {list(rows.shape)}")
        self._map(layer_ids)
        wanted: NDArray[np.int64] = rows.numpy()
        # As unsigned numbers, so that one pass finds negative ones too.
        if len(wanted) and int(wanted.view(np.uint64).max()) >= self._n_rows:
            raise IndexError(
                f"rows must be in 0 to {self._n_rows - 1}, found {wanted.min()} to {wanted.max()}"
            )
        pack = self._pack_of_row.take(wanted)
        places = self._places_of(wanted, pack, layer_ids, "rows", self._header.width)
        if not self._header.is_scaled:
            return LocatedRows(len(layer_ids), self._windows, places)
        scales = self._region.data.view(torch.float32)
        scale_places = self._places_of(wanted, pack, layer_ids, "scale", 1)
        return LocatedRows(len(layer_ids), self._windows, places, scales, scale_places)

    def _places_of(
        self,
        wanted: NDArray[np.int64],
        pack: NDArray[np.int32],
        layer_ids: Sequence[int],
        name: str,
        n_elements: int,
    ) -> torch.Tensor:
        """First element of each row in each layer, int64 [B * L], of a tensor with `n_elements` a row."""
        elements = wanted * n_elements
        places = np.empty((len(wanted), len(layer_ids)), dtype=np.int64)
        for column, layer_id in enumerate(layer_ids):
            np.add(self._starts[name, layer_id].take(pack), elements, out=places[:, column])
        return torch.from_numpy(places.reshape(-1))

    def column(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole column `prompt`, `position`, `token_id` or `label`, [n_rows], alike in every layer."""
        layer_id = self._header.layer_ids[0]
        self._map([layer_id])
        parts = [
            self._region.data[start:stop].view(dtype) for start, stop in self._spans(layer_id, name).tolist()
        ]
        return torch.cat(parts)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """Number of each pack's first row, int64 [n_packs]."""
        return self._first_rows

    @cached_property
    def _region(self) -> FileRegion:
        """Memory for the files of all layers, of which only those asked for are mapped."""
        sizes = {file.name: file.n_bytes for entry in self._manifest.shards for file in entry.files}
        return FileRegion(
            [sizes[name] for layer_id in self._header.layer_ids for name in self._names(layer_id)]
        )

    @cached_property
    def _pack_of_row(self) -> NDArray[np.int32]:
        """Number of each row's pack: a look-up costs a tenth of a search among the packs' first rows."""
        return np.repeat(np.arange(len(self._n_pack_rows), dtype=np.int32), self._n_pack_rows)

    @cached_property
    def _windows(self) -> torch.Tensor:
        """Every place where a row could start, [n, width], of which one gather takes those wanted.

        The packs' headers and labels lie between the rows, so that no plain matrix covers them.
        """
        elements = self._region.data.view(self._header.torch_dtype)
        width = self._header.width
        return elements.as_strided((max(len(elements) - width + 1, 0), width), (1, 1))

    def _map(self, layer_ids: Sequence[int]) -> None:
        """Map the files of layers that are not yet mapped."""
        for layer_id in layer_ids:
            if ("rows", layer_id) in self._starts:
                continue
            if layer_id not in self._header.layer_ids:
                stored = ", ".join(map(str, self._header.layer_ids))
                raise RunError(f"{self._run} holds no layer {layer_id} of {self._stream}; it holds {stored}")
            for place, name in zip(self._places(layer_id), self._names(layer_id), strict=True):
                self._region.map_file(place, self._run / name)
            if self._header.is_scaled:
                self._starts["scale", layer_id] = self._starts_of(layer_id, "scale", 4, 1)
            self._starts["rows", layer_id] = self._starts_of(
                layer_id, "rows", self._header.torch_dtype.itemsize, self._header.width
            )

    def _starts_of(self, layer_id: int, name: str, element_bytes: int, n_elements: int) -> NDArray[np.int64]:
        """First element of each pack's tensor, gone back by the rows before the pack."""
        first_bytes: NDArray[np.int64] = self._spans(layer_id, name)[:, 0]
        return first_bytes // element_bytes - self._first_rows * n_elements

    def _names(self, layer_id: int) -> list[str]:
        """The layer's files."""
        return [layout.tar_name(self._stream, layer_id, shard.number) for shard in self._shards]

    def _places(self, layer_id: int) -> range:
        """Where the layer's files stand among the region's."""
        first = self._header.layer_ids.index(layer_id) * len(self._shards)
        return range(first, first + len(self._shards))

    def _spans(self, layer_id: int, name: str) -> NDArray[np.int64]:
        """First byte in the region of one tensor of each pack, and the byte after its last, [n, 2]."""
        places = zip(self._places(layer_id), self._shards, strict=True)
        spans: NDArray[np.int64] = np.concatenate(
            [
                shard.spans[self._stream, layer_id][name] + [self._region.offsets[place], 0]
                for place, shard in places
            ]
        )
        return spans.cumsum(axis=1)
