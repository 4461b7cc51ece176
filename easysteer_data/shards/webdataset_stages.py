"""Stages for other people's WebDataset pipelines: packs to tensors, packs to rows. Knows no run folder.

Needs the webdataset package only where it is used, and never unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import safetensors
import safetensors.torch

from easysteer_data.errors import BadShardError


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


def unpack_rows(samples: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Stage for `.compose(unpack_rows)` behind `decode_safetensors`: one sample a row.

    Yields:
        `x` [width] in the storage dtype, and scalar tensors `prompt`, `position`, `token_id`, and `label` if
        the run has labels.

    Raises:
        BadShardError: a sample is no decoded pack.
    """
    for sample in samples:
        tensors = sample.get("safetensors")
        if not isinstance(tensors, dict) or "rows" not in tensors:
            raise BadShardError("unpack_rows needs decoded packs: put .decode(decode_safetensors) before it")
        columns = {name: column for name, column in tensors.items() if name != "rows"}
        for row, x in enumerate(tensors["rows"]):
            # A view would keep its whole pack in memory for as long as a shuffle buffer keeps the row.
            yield {"x": x.clone(), **{name: column[row] for name, column in columns.items()}}
