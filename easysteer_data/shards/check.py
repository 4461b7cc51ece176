"""What a shard must be before it is written. Knows tensors and the run's header, no file."""

from __future__ import annotations

import math

import numpy as np
import torch

from easysteer_data.errors import ProofError, RunError
from easysteer_data.shards.dtypes import CAPTURE_DTYPES, SCALED_PEAKS
from easysteer_data.shards.header import RunHeader, StreamHeader
from easysteer_data.shards.index import LayerKey
from easysteer_data.types import CapturedShard, RowIndex


def check_shard(shard: CapturedShard, header: RunHeader) -> None:
    """Check prompts, row labels, layers, shapes and dtypes against the run's header.

    Raises:
        RunError: the shard is not the planned one; the message names the shard and what is odd.
    """
    where = f"shard {shard.number}"
    if not 0 <= shard.number < len(header.plan):
        raise RunError(f"{where}: the plan has shards 0 to {len(header.plan) - 1}")
    _check_prompts(where, shard, header.plan[shard.number])
    _check_index(where, shard)
    if set(shard.values) != set(header.streams):
        raise RunError(f"{where}: has streams {sorted(shard.values)}, the run has {sorted(header.streams)}")
    for stream, shape in header.streams.items():
        layers = shard.values[stream]
        if sorted(layers) != list(shape.layer_ids):
            raise RunError(f"{where}: has layers {sorted(layers)} of {stream}, the run has {shape.layer_ids}")
        for layer_id, rows in layers.items():
            _check_rows(f"{where}, {stream} layer {layer_id}", rows, len(shard.index), shape)


def check_values(shard: CapturedShard, key: LayerKey, max_abs: float, storage: torch.dtype | None) -> None:
    """Refuse rows that are not finite, as captured or as they would be stored.

    Args:
        shard: the rows.
        key: which of their layers.
        max_abs: the layer's largest absolute value, not finite if any value is not.
        storage: the type they will be stored in; None if they will not be.

    Raises:
        ProofError: names the first such row's prompt, layer and position.
    """
    if not math.isfinite(max_abs):
        raise ProofError(f"{_first_row(shard, key, torch.float32)}: the row is not finite")
    stream, layer_id = key
    if storage is None or storage in SCALED_PEAKS or storage == shard.values[stream][layer_id].dtype:
        return
    # Rounding keeps the order of values: all can be stored if the largest can.
    if not torch.tensor(max_abs, dtype=torch.float32).to(storage).isfinite():
        name = str(storage).removeprefix("torch.")
        others = "bfloat16 or float32" if storage == torch.float16 else "float32"
        raise ProofError(
            f"{_first_row(shard, key, storage)}: the row overflows {name}, which holds values up to "
            f"{torch.finfo(storage).max:g}; store {others}"
        )


def _first_row(shard: CapturedShard, key: LayerKey, dtype: torch.dtype) -> str:
    """Stream, layer, prompt and position of the first row that is not finite in an element type."""
    stream, layer_id = key
    rows = shard.values[stream][layer_id]
    row = next(row for row, values in enumerate(rows) if not values.to(dtype).isfinite().all())
    prompt, position = int(shard.index.prompt[row]), int(shard.index.position[row])
    source = shard.prompts[prompt - shard.prompts[0].prompt.index].prompt.source
    return f"{stream} layer {layer_id}, prompt {prompt} ({source}), position {position}"


def _check_prompts(where: str, shard: CapturedShard, planned: tuple[int, int]) -> None:
    found = [captured.prompt.index for captured in shard.prompts]
    if found != list(range(*planned)):
        odd = f"{found[0]} to {found[-1]}" if found else "none"
        raise RunError(
            f"{where}: must hold prompts {planned[0]} to {planned[1] - 1} in order, found {len(found)}: {odd}"
        )


def _check_index(where: str, shard: CapturedShard) -> None:
    """Each prompt has as many rows as it says, in order of (prompt, position), none twice."""
    index = shard.index
    for name in RowIndex.__dataclass_fields__:
        column = getattr(index, name)
        if column.dtype != torch.int32 or column.shape != (len(index),):
            raise RunError(f"{where}: {name} must be int32 [{len(index)}], found {_shape(column)}")
    n_rows = np.array([captured.n_rows for captured in shard.prompts])
    numbers = np.array([captured.prompt.index for captured in shard.prompts])
    if n_rows.min() < 0 or not np.array_equal(np.repeat(numbers, n_rows), index.prompt.numpy()):
        raise RunError(
            f"{where}: the rows' prompts are not the prompts' counts of rows, {n_rows.sum()} in all"
        )
    same_prompt = index.prompt[1:] == index.prompt[:-1]
    backwards = same_prompt & (index.position[1:] <= index.position[:-1])
    if backwards.any():
        row = int(backwards.nonzero()[0]) + 1
        raise RunError(
            f"{where}: positions must ascend within a prompt, but prompt {int(index.prompt[row])} has "
            f"{int(index.position[row])} after {int(index.position[row - 1])}"
        )


def _check_rows(where: str, rows: torch.Tensor, n_rows: int, shape: StreamHeader) -> None:
    if rows.dtype not in CAPTURE_DTYPES or rows.shape != (n_rows, shape.width):
        raise RunError(
            f"{where}: must be float32, bfloat16 or float16 [{n_rows}, {shape.width}], found {_shape(rows)}"
        )
    if rows.device.type != "cpu":
        raise RunError(f"{where}: must be in host memory, found it on {rows.device}")


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
