"""Stages for other people's WebDataset pipelines: packs to tensors, packs to rows. Knows no run folder.

Needs the webdataset package only where it is used, and never unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import safetensors
import safetensors.torch
import torch

from easysteer_data.errors import BadShardError
from easysteer_data.shards.storage import StoredRows, decode


def decode_safetensors(key: str, data: bytes) -> object:
    """Handler for `wds.WebDataset(...).decode(decode_safetensors)`.

    WebDataset asks it first, and would ask its own handlers, which unpickle, for whatever this one leaves.
    So it leaves nothing: a pack has no other members.

    Args:
        key: a member's name from the first dot on, with the dot.
        data: the member's bytes.

    Returns:
        A dict of tensors for `.safetensors`, the value for `.json`.

    Raises:
        BadShardError: the member is of another kind, or can't be read as its kind.
    """
    try:
        if key == ".safetensors":
            return safetensors.torch.load(data)
        if key == ".json":
            return json.loads(data)
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise BadShardError(f"a member *{key} can't be read: {error}") from error
    raise BadShardError(f"a shard has a member *{key}; only .safetensors and .json belong there")


def dequantise_packs(samples: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Stage for `.compose(dequantise_packs)` behind `decode_safetensors`: packs with their scales applied.

    Yields:
        Each sample with `rows` as floats: float32 where there was a `scale`, which is gone, else unchanged.

    Raises:
        BadShardError: a sample is no decoded pack.
    """
    for sample in samples:
        yield {**sample, "safetensors": _float_tensors(sample, "dequantise_packs")}


def unpack_rows(samples: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Stage for `.compose(unpack_rows)` behind `decode_safetensors`: one sample a row.

    Yields:
        `x` [width] in the storage dtype, float32 where there are scales, and scalar tensors `prompt`,
        `position`, `token_id`, and `label` if the run has labels.

    Raises:
        BadShardError: a sample is no decoded pack.
    """
    for sample in samples:
        columns = _float_tensors(sample, "unpack_rows")
        rows = columns.pop("rows")
        for row, x in enumerate(rows):
            # A view would keep its whole pack in memory for as long as a shuffle buffer keeps the row.
            yield {"x": x.clone(), **{name: column[row] for name, column in columns.items()}}


def unpack_prompts(samples: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Stage for `.compose(unpack_prompts)` behind `decode_safetensors`: one sample a prompt that has rows.

    Yields:
        `x` [n, width] in the storage dtype, float32 where there are scales, `position` and `token_id` [n],
        and scalar tensors `prompt`, and `label` if the run has labels.

    Raises:
        BadShardError: a sample is no decoded pack.
    """
    for sample in samples:
        columns = _float_tensors(sample, "unpack_prompts")
        columns["x"] = columns.pop("rows")
        _, n_rows = torch.unique_consecutive(columns["prompt"], return_counts=True)
        sizes = n_rows.tolist()
        parts = {name: torch.split(column, sizes) for name, column in columns.items()}
        for place in range(len(sizes)):
            prompt = {name: part[place].clone() for name, part in parts.items()}
            yield {name: x[0] if name in ("prompt", "label") else x for name, x in prompt.items()}


def _float_tensors(sample: dict[str, object], stage: str) -> dict[str, torch.Tensor]:
    """The tensors of a pack, its rows as floats."""
    tensors = sample.get("safetensors")
    if not isinstance(tensors, dict) or "rows" not in tensors:
        raise BadShardError(f"{stage} needs decoded packs: put .decode(decode_safetensors) before it")
    columns = {name: column for name, column in tensors.items() if name != "scale"}
    return {**columns, "rows": decode(StoredRows(tensors["rows"], tensors.get("scale")))}
