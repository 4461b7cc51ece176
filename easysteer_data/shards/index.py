"""Where each tensor of a shard lies in its tar files, so that readers map them and never parse a tar.

Knows offsets and sizes; opens no tar. An index of unknown origin can't make a reader leave the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from easysteer_data.errors import RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import JsonRecord, canonical_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.shards.pack import Pack, Span
from easysteer_data.types import Stream

LayerKey = tuple[Stream, int]


def layer_keys(layers: Mapping[Stream, Sequence[int]]) -> list[LayerKey]:
    """The layers of all streams, in order."""
    return [(stream, layer_id) for stream, layer_ids in layers.items() for layer_id in layer_ids]


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The packs of one shard and the place of their tensors.

    Attributes:
        number: the shard's number.
        packs: its packs, in order; the same in every layer.
        spans: (stream, layer id) -> tensor name -> int64 [n_packs, 2]: absolute offset and size in bytes.
    """

    number: int
    packs: tuple[Pack, ...]
    spans: Mapping[LayerKey, Mapping[str, NDArray[np.int64]]]


def index_bytes(
    number: int, packs: tuple[Pack, ...], spans: Mapping[LayerKey, list[dict[str, Span]]]
) -> bytes:
    """The contents of a shard's index file.

    Args:
        number: the shard's number.
        packs: its packs.
        spans: (stream, layer id) -> for each pack, tensor name -> span in that layer's tar.
    """
    streams: dict[str, dict[str, object]] = {}
    for (stream, layer_id), placed in spans.items():
        tensors = {name: [list(pack[name]) for pack in placed] for name in placed[0]}
        streams.setdefault(stream, {})[str(layer_id)] = tensors
    rows = [
        {"key": pack.key, "prompts": list(pack.prompts), "first_row": pack.first_row, "n_rows": pack.n_rows}
        for pack in packs
    ]
    return canonical_json({"shard": number, "packs": rows, "streams": streams}) + b"\n"


def read_index(record: JsonRecord, header: RunHeader, entry: ShardEntry) -> ShardIndex:
    """Check an index against the run's header and the shard's manifest entry.

    Raises:
        RunError: a value is missing or impossible; the message names the stream, layer and tensor.
    """
    if record.count("shard") != entry.number:
        raise RunError(f"{record.where}: is the index of shard {record.count('shard')}")
    packs = _read_packs(record, entry)
    n_rows = [pack.n_rows for pack in packs]
    n_bytes = {file.name: file.n_bytes for file in entry.files}
    spans: dict[LayerKey, dict[str, NDArray[np.int64]]] = {}
    for stream, layer_ids in header.layers.items():
        streams = record.record("streams").record(stream)
        for layer_id in layer_ids:
            tensors = streams.record(str(layer_id))
            n_tar = n_bytes[layout.tar_name(stream, layer_id, entry.number)]
            spans[stream, layer_id] = {
                name: _read_spans(tensors, name, n_rows, sizes, n_tar)
                for name, sizes in tensor_sizes(header, stream).items()
            }
    return ShardIndex(entry.number, packs, spans)


def tensor_sizes(header: RunHeader, stream: Stream) -> dict[str, tuple[int, int]]:
    """Tensor name -> bytes of one element, bytes of one row."""
    rows = header.streams[stream]
    sizes = {"prompt": (4, 4), "position": (4, 4), "token_id": (4, 4)}
    if rows.is_scaled:
        sizes["scale"] = (4, 4)
    sizes["rows"] = (rows.torch_dtype.itemsize, rows.row_bytes)
    if header.label.dtype is not None:
        sizes["label"] = (header.label.dtype.itemsize, header.label.dtype.itemsize)
    return sizes


def _read_packs(record: JsonRecord, entry: ShardEntry) -> tuple[Pack, ...]:
    packs = tuple(
        Pack(item.text("key"), item.span("prompts"), item.count("first_row"), item.count("n_rows"))
        for item in record.records("packs")
    )
    first_rows = list(accumulate((pack.n_rows for pack in packs), initial=0))
    if [pack.first_row for pack in packs] != first_rows[:-1] or first_rows[-1] != entry.n_rows:
        raise RunError(f"{record.where}: the packs do not add up to the shard's {entry.n_rows} rows")
    cuts = [entry.prompts[0], *(pack.prompts[1] for pack in packs)]
    if (
        [pack.prompts[0] for pack in packs] != cuts[:-1]
        or cuts[-1] != entry.prompts[1]
        or cuts != sorted(cuts)
    ):
        raise RunError(f"{record.where}: the packs do not cover the shard's prompts {entry.prompts}")
    return packs


def _read_spans(
    tensors: JsonRecord, name: str, n_rows: list[int], sizes: tuple[int, int], n_tar: int
) -> NDArray[np.int64]:
    """One tensor's spans [n_packs, 2], each inside a tar file of `n_tar` bytes."""
    element_bytes, row_bytes = sizes
    spans = tensors.spans(name)
    offset, n_bytes = spans[:, 0], spans[:, 1]
    if n_bytes.tolist() != [rows * row_bytes for rows in n_rows]:
        raise RunError(f"{tensors.where}: {name} can't be {len(n_rows)} packs with {row_bytes} bytes a row")
    if (offset % element_bytes).any() or (offset > n_tar - n_bytes).any():
        raise RunError(f"{tensors.where}: {name} is not at whole elements in a file of {n_tar} bytes")
    return spans
