"""Reads a shard's tar to the last byte and compares it with the shard's index and prompt table.

Knows the format that README.md here describes, and demands exactly it. Trusts no number in the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from easysteer_data.errors import BadShardError
from easysteer_data.shards.checked_json import parse_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, ShardIndex
from easysteer_data.shards.pack import Pack
from easysteer_data.shards.tar import BLOCK, member_header


def check_tar(
    path: Path, header: RunHeader, index: ShardIndex, key: LayerKey, n_rows: NDArray[np.int32] | None
) -> None:
    """Check one layer's tar: members and their order, end blocks, tensors, their places, finite rows.

    Args:
        path: the tar.
        header: the run's.
        index: the shard's.
        key: which layer.
        n_rows: rows of each prompt of the shard; None where that is not known.

    Raises:
        RunError: the message says what is wrong, not in which file.
    """
    first_prompt = index.packs[0].prompts[0]
    with path.open("rb") as file:
        for number, pack in enumerate(index.packs):
            data, offset = _member(file, f"{pack.key}.safetensors")
            spans = {name: tuple(placed[number].tolist()) for name, placed in index.spans[key].items()}
            tensors = _tensors(pack, data, offset, spans)
            _check_rows(pack, tensors, header, key)
            if n_rows is not None:
                _check_prompts(pack, tensors, n_rows[slice(*(p - first_prompt for p in pack.prompts))])
            _check_about(pack, _member(file, f"{pack.key}.json")[0], key)
        if file.read(2 * BLOCK + 1) != bytes(2 * BLOCK):
            raise BadShardError("does not end with two empty blocks right behind its last member")


def _member(file: BinaryIO, name: str) -> tuple[bytes, int]:
    """The next member's bytes and their offset in the file; it must be of this name."""
    head = file.read(BLOCK)
    if len(head) < BLOCK or not any(head):
        raise BadShardError(f"ends before its member {name}")
    digits = head[124:135]
    n_bytes = int(digits, 8) if set(digits) <= set(b"01234567") else 0
    if head != member_header(name, n_bytes):
        found = head[:100].rstrip(b"\0").decode(errors="replace")
        raise BadShardError(f"has no proper header of its member {name}, but of {found!r}")
    offset = file.tell()
    n_padding = -n_bytes % BLOCK
    if n_bytes + n_padding > os.fstat(file.fileno()).st_size - offset:
        raise BadShardError(f"ends within its member {name}")
    data = file.read(n_bytes)
    if any(file.read(n_padding)):
        raise BadShardError(f"has bytes that are not zero behind its member {name}")
    return data, offset


def _tensors(
    pack: Pack, data: bytes, offset: int, spans: dict[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """The pack's tensors, which must lie where the index says: `spans` are absolute offsets and sizes."""
    try:
        tensors: dict[str, torch.Tensor] = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise BadShardError(f"{pack.key}: no readable tensors ({error})") from error
    n_header = int.from_bytes(data[:8], "little")
    record = parse_json(data[8 : 8 + n_header], pack.key)
    for name in record.values.keys() | spans.keys():
        if name not in tensors or name not in spans:
            raise BadShardError(f"{pack.key}: has tensors {sorted(tensors)}, the index {sorted(spans)}")
        start, stop = record.record(name).span("data_offsets")
        if (offset + 8 + n_header + start, stop - start) != spans[name]:
            raise BadShardError(f"{pack.key}: {name} does not lie where the index says")
    return tensors


def _check_rows(pack: Pack, tensors: dict[str, torch.Tensor], header: RunHeader, key: LayerKey) -> None:
    shape = header.streams[key[0]]
    rows = tensors["rows"]
    if rows.dtype != shape.torch_dtype or rows.shape != (pack.n_rows, shape.width):
        found = f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}"
        raise BadShardError(
            f"{pack.key}: rows must be {shape.dtype} [{pack.n_rows}, {shape.width}], found {found}"
        )
    if pack.n_rows == 0:
        return
    for name, tensor in tensors.items():
        if name == "label" or not tensor.is_floating_point():  # NaN is the number of no label
            continue
        finite = torch.isfinite(tensor.float()).reshape(pack.n_rows, -1).all(dim=1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            prompt, position = int(tensors["prompt"][row]), int(tensors["position"][row])
            raise BadShardError(f"{pack.key}: {name} of prompt {prompt}, position {position} are not finite")


def _check_prompts(pack: Pack, tensors: dict[str, torch.Tensor], n_rows: NDArray[np.int32]) -> None:
    """Each row is of the prompt that the prompt table counts it for, positions ascend."""
    prompt, position = tensors["prompt"].numpy(), tensors["position"].numpy()
    if not np.array_equal(prompt, np.repeat(np.arange(*pack.prompts), n_rows)):
        raise BadShardError(f"{pack.key}: the prompt table counts other rows than the tar holds")
    if ((prompt[1:] == prompt[:-1]) & (position[1:] <= position[:-1])).any():
        raise BadShardError(f"{pack.key}: positions do not ascend within a prompt")


def _check_about(pack: Pack, data: bytes, key: LayerKey) -> None:
    record = parse_json(data, f"{pack.key}.json")
    stream, layer_id = key
    expected: dict[str, object] = {
        "stream": stream,
        "layer_id": layer_id,
        "first_prompt": pack.prompts[0],
        "last_prompt": pack.prompts[1] - 1,
        "n_rows": pack.n_rows,
    }
    for name, value in expected.items():
        if record.values.get(name) != value:
            raise BadShardError(f"{pack.key}.json: {name} must be {value}, is {record.values.get(name)}")
