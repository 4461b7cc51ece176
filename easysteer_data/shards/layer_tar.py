"""One layer of one shard on its way into a tar file, pack by pack. Knows rows and labels, no run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from easysteer_data.shards import layout
from easysteer_data.shards.dtypes import holds_exactly
from easysteer_data.shards.durable import DurableFile
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.pack import Pack, Span, pack_columns, pack_tensors, write_pack
from easysteer_data.shards.storage import StorageError, StorageMeter, encode
from easysteer_data.shards.tar import SMALL_BYTES, Sink, TarWriter
from easysteer_data.types import CapturedShard


@dataclass(frozen=True, slots=True)
class LayerTar:
    """A tar file that is on the disk.

    Attributes:
        name: its name relative to the run folder.
        n_bytes: its size.
        sha256: its hash in hex.
        spans: for each pack, tensor name -> where it lies.
        error: what storage lost; None where the storage type holds every value.
    """

    name: str
    n_bytes: int
    sha256: str
    spans: list[dict[str, Span]]
    error: StorageError | None


class LayerTarWriter:
    """Writes one shard's layers, also several at once.

    Attributes:
        out: the run folder.
        header: the run's header.
        shard: the rows as captured.

    Args:
        packs: how the shard is divided.
        labels: label of each row, None in runs without labels.
    """

    def __init__(
        self,
        out: Path,
        header: RunHeader,
        shard: CapturedShard,
        packs: Sequence[Pack],
        labels: torch.Tensor | None,
    ) -> None:
        self.out = out
        self.header = header
        self.shard = shard
        self._packs = [(pack, pack_columns(pack, shard.index, labels)) for pack in packs]

    def has_bytes(self, key: LayerKey) -> bool:
        """Whether a layer's file lies in memory but for what is small: its rows are stored as they are."""
        stream, layer_id = key
        rows = self.shard.values[stream][layer_id]
        return (
            rows.dtype == self.header.streams[stream].torch_dtype
            and rows.is_contiguous()
            and rows.nbytes >= SMALL_BYTES * len(self._packs)
        )

    def name(self, key: LayerKey) -> str:
        """The name of a layer's file, relative to the run folder."""
        return layout.tar_name(*key, self.shard.number)

    def write(self, key: LayerKey, file: DurableFile) -> LayerTar:
        """Convert and write one layer; beside the captured rows, one pack of its stored ones is in memory."""
        stream, layer_id = key
        held = holds_exactly(
            self.header.streams[stream].torch_dtype, self.shard.values[stream][layer_id].dtype
        )
        meter = None if held else StorageMeter()
        spans = self.put(file, key, meter)
        error = None if meter is None else meter.error()
        return LayerTar(self.name(key), file.n_bytes, file.sha256, spans, error)

    def put(self, sink: Sink, key: LayerKey, meter: StorageMeter | None = None) -> list[dict[str, Span]]:
        """Give a layer's file to what takes bytes; returns where each pack's tensors lie."""
        stream, layer_id = key
        rows, dtype = self.shard.values[stream][layer_id], self.header.streams[stream].torch_dtype
        tar, spans = TarWriter(sink), []
        for pack, columns in self._packs:
            tensors = pack_tensors(columns, encode(rows[pack.rows], dtype, meter))
            spans.append(write_pack(tar, pack.key, tensors, self._about(key, pack)))
        tar.finish()
        return spans

    def _about(self, key: LayerKey, pack: Pack) -> dict[str, object]:
        """The pack's `.json`."""
        stream, layer_id = key
        shape = self.header.streams[stream]
        return {
            "stream": stream,
            "layer_id": layer_id,
            "width": shape.width,
            "dtype": shape.dtype,
            "layout": shape.to_json()["layout"],
            "label_names": list(self.header.label.names),
            "first_prompt": pack.prompts[0],
            "last_prompt": pack.prompts[1] - 1,
            "n_rows": pack.n_rows,
        }
