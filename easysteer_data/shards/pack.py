"""A pack: the rows of a few consecutive prompts as one WebDataset sample, written without copying them.

Knows safetensors framing and the two members of a sample; knows no run folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import canonical_json
from easysteer_data.shards.dtypes import SAFETENSORS_NAMES
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.plan import plan_packs
from easysteer_data.shards.storage import StoredRows
from easysteer_data.shards.tar import TarWriter
from easysteer_data.types import CapturedShard, RowIndex

Span = tuple[int, int]  # absolute offset in the tar file, bytes


@dataclass(frozen=True, slots=True)
class Pack:
    """Which rows a pack holds.

    Attributes:
        key: its WebDataset key.
        prompts: half-open range of prompt indices.
        first_row: place of its first row among the shard's rows.
        n_rows: rows in it.
    """

    key: str
    prompts: tuple[int, int]
    first_row: int
    n_rows: int

    @property
    def rows(self) -> slice:
        """Its rows among the shard's rows."""
        return slice(self.first_row, self.first_row + self.n_rows)


def packs_of(shard: CapturedShard, header: RunHeader) -> tuple[Pack, ...]:
    """Divide a shard's prompts into packs, by the widest stream, so that all layers have the same ones."""
    row_bytes = max(shape.row_bytes for shape in header.streams.values())
    n_rows = [captured.n_rows for captured in shard.prompts]
    first_prompt = shard.prompts[0].prompt.index
    packs, first_row = [], 0
    for number, (start, stop) in enumerate(plan_packs(n_rows, row_bytes, header.pack_bytes)):
        n_pack = sum(n_rows[start:stop])
        prompts = (first_prompt + start, first_prompt + stop)
        packs.append(Pack(layout.pack_key(shard.number, number), prompts, first_row, n_pack))
        first_row += n_pack
    return tuple(packs)


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor as it lies in a file.

    Attributes:
        dtype: its element type.
        shape: its shape.
        data: its elements, format "B".
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorBytes:
        """A tensor's memory, without a copy if it is contiguous."""
        # Not view(-1): a tensor of no or one element may be contiguous and have any stride.
        flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
        # numpy has no bfloat16, but every dtype has bytes
        return cls(tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().data)


def pack_columns(pack: Pack, index: RowIndex, labels: torch.Tensor | None) -> dict[str, TensorBytes]:
    """What a pack's file has of each row beside the row, the same for all layers, in the order it is stored.

    The widest element type goes first, so that every tensor's offset is a multiple of its element size
    without padding; `pack_tensors` puts the rows last.
    """
    columns = {} if labels is None else {"label": labels}
    columns |= {"prompt": index.prompt, "position": index.position, "token_id": index.token_id}
    return {name: TensorBytes.of(column[pack.rows]) for name, column in columns.items()}


def pack_tensors(columns: Mapping[str, TensorBytes], stored: StoredRows) -> dict[str, TensorBytes]:
    """One layer's tensors of one pack, in the order they are stored; `stored` holds the pack's rows only."""
    tensors = dict(columns)
    if stored.scale is not None:
        tensors["scale"] = TensorBytes.of(stored.scale)
    return {**tensors, "rows": TensorBytes.of(stored.rows)}


def write_pack(
    tar: TarWriter, key: str, tensors: Mapping[str, TensorBytes], about: Mapping[str, object]
) -> dict[str, Span]:
    """Write the two members of a sample, and return where each tensor lies."""
    header = safetensors_header(tensors)
    data = [tensor.data for tensor in tensors.values()]
    start = tar.add(f"{key}.safetensors", [header, *data]) + len(header)
    tar.add(f"{key}.json", [canonical_json(about)])
    return dict(zip(tensors, _spans(start, map(len, data)), strict=True))


def safetensors_header(tensors: Mapping[str, TensorBytes]) -> bytes:
    """The bytes before the tensors of a safetensors file.

    Eight bytes of length (little-endian), then JSON, padded with blanks to a multiple of 8.
    """
    spans = _spans(0, (len(tensor.data) for tensor in tensors.values()))
    entries = {
        name: {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, start + size],
        }
        for (name, tensor), (start, size) in zip(tensors.items(), spans, strict=True)
    }
    text = canonical_json(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _spans(start: int, sizes: Iterable[int]) -> Sequence[Span]:
    spans = []
    for size in sizes:
        spans.append((start, size))
        start += size
    return spans
