"""One layer of one shard on its way into a tar file, pack by pack. Knows rows and labels, no run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from easysteer_data.shards import layout
from easysteer_data.shards.dtypes import holds_exactly
from easysteer_data.shards.durable import ByteDigest, DurableFile
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.pack import Pack, Span, pack_tensors, write_pack
from easysteer_data.shards.storage import StorageError, StorageMeter, encode
from easysteer_data.shards.tar import TarWriter
from easysteer_data.types import CapturedShard


@dataclass(frozen=True, slots=True)
class LayerTar:
    """A tar file that is on the disk.

    Attributes:
        name: its name relative to the run folder.
        n_bytes: its size.
        sha256: its hash in hex; None if it was written without one.
        spans: for each pack, tensor name -> where it lies.
        error: what storage lost; None where the storage type holds every value.
    """

    name: str
    n_bytes: int
    sha256: str | None
    spans: list[dict[str, Span]]
    error: StorageError | None


@dataclass(frozen=True, slots=True)
class LayerTarWriter:
    """Writes one shard's layers, also several at once.

    Attributes:
        out: the run folder.
        header: the run's header.
        shard: the rows as captured.
        packs: how the shard is divided.
        labels: label of each row, None in runs without labels.
    """

    out: Path
    header: RunHeader
    shard: CapturedShard
    packs: tuple[Pack, ...]
    labels: torch.Tensor | None

    def stores_as_captured(self, key: LayerKey) -> bool:
        """Whether a layer's rows are stored in the type that they have."""
        stream, layer_id = key
        return self.shard.values[stream][layer_id].dtype == self.header.streams[stream].torch_dtype

    def digest(self, key: LayerKey) -> str:
        """The hash of the file that `write` makes of a layer that is stored as captured: sha256 in hex.

        By another thread than `write`'s, since it takes twice as long.
        """
        digest = ByteDigest()
        self._put(digest, key, None)
        return digest.sha256

    def write(self, key: LayerKey, *, hashed: bool = True) -> LayerTar:
        """Convert and write one layer; beside the captured rows, one pack of its stored ones is in memory."""
        stream, layer_id = key
        held = holds_exactly(
            self.header.streams[stream].torch_dtype, self.shard.values[stream][layer_id].dtype
        )
        meter = None if held else StorageMeter()
        name = layout.tar_name(stream, layer_id, self.shard.number)
        with DurableFile(self.out / name, hashed=hashed) as file:
            spans = self._put(file, key, meter)
        sha256 = file.sha256 if hashed else None
        return LayerTar(name, file.n_bytes, sha256, spans, None if meter is None else meter.error())

    def _put(
        self, file: DurableFile | ByteDigest, key: LayerKey, meter: StorageMeter | None
    ) -> list[dict[str, Span]]:
        stream, layer_id = key
        rows, dtype = self.shard.values[stream][layer_id], self.header.streams[stream].torch_dtype
        tar, spans = TarWriter(file), []
        for pack in self.packs:
            stored = encode(rows[pack.rows], dtype, meter)
            tensors = pack_tensors(pack, stored, self.shard.index, self.labels)
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
