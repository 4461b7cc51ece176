"""Running statistics of rows: measured shard by shard, merged in shard order. Knows no tar and no label.

All sums are float64, single-threaded and in a fixed order, so that equal rows give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from easysteer_data.errors import BadShardError
from easysteer_data.shards import layout
from easysteer_data.shards.index import LayerKey

_BLOCK_VALUES = 2**16  # 512 KiB of float64: a block stays in the cache for all passes over it


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Statistics of n rows of one layer; zeros where n is 0.

    Attributes:
        n_rows: how many rows.
        mean: float64 [width].
        mean_square: float64 [width], mean of the squares; the variance is mean_square - mean ** 2.
        mean_norm: mean L2 norm of a row.
        max_abs: largest absolute value; not finite if any value is not.
    """

    n_rows: int
    mean: torch.Tensor
    mean_square: torch.Tensor
    mean_norm: float
    max_abs: float


def measure(rows: torch.Tensor) -> RowStatistics:
    """Statistics of rows [n, width] of a floating dtype."""
    n_rows, width = rows.shape
    n_block = max(1, _BLOCK_VALUES // width)
    singles = torch.empty(n_block, width, dtype=torch.float32)
    doubles = torch.empty(n_block, width, dtype=torch.float64)
    total, total_square = np.zeros(width), np.zeros(width)
    total_norm, max_abs = 0.0, 0.0
    for start in range(0, n_rows, n_block):
        block = rows[start : start + n_block]
        single, double = singles[: len(block)], doubles[: len(block)]
        # Half to double directly is four times slower than by way of single.
        double.copy_(single.copy_(block))
        low, high = torch.aminmax(single)
        max_abs = np.maximum(max_abs, np.maximum(-float(low), float(high)))  # keeps a NaN, max() may not
        values: NDArray[np.float64] = double.numpy()
        total += values.sum(axis=0)
        np.multiply(values, values, out=values)
        total_square += values.sum(axis=0)
        total_norm += float(np.sqrt(values.sum(axis=1)).sum())
    n = max(n_rows, 1)
    mean, mean_square = torch.from_numpy(total / n), torch.from_numpy(total_square / n)
    return RowStatistics(n_rows, mean, mean_square, total_norm / n, float(max_abs))


def merge(parts: Sequence[RowStatistics]) -> RowStatistics:
    """Statistics of all rows of the parts together; their order decides the last bits."""
    n_rows = sum(part.n_rows for part in parts)
    weights = [part.n_rows / max(n_rows, 1) for part in parts]
    mean, mean_square = torch.zeros_like(parts[0].mean), torch.zeros_like(parts[0].mean)
    for weight, part in zip(weights, parts, strict=True):
        mean += weight * part.mean
        mean_square += weight * part.mean_square
    mean_norm = sum(weight * part.mean_norm for weight, part in zip(weights, parts, strict=True))
    return RowStatistics(n_rows, mean, mean_square, mean_norm, max(part.max_abs for part in parts))


def statistics_bytes(layers: Mapping[LayerKey, RowStatistics]) -> bytes:
    """A safetensors file of `<stream>/layer-012/<name>`, all float64."""
    tensors: dict[str, torch.Tensor] = {}
    for (stream, layer_id), part in layers.items():
        prefix = layout.layer_folder(stream, layer_id)
        tensors[f"{prefix}/count"] = torch.tensor(part.n_rows, dtype=torch.float64)
        tensors[f"{prefix}/mean"] = part.mean
        tensors[f"{prefix}/mean_square"] = part.mean_square
        tensors[f"{prefix}/mean_norm"] = torch.tensor(part.mean_norm, dtype=torch.float64)
        tensors[f"{prefix}/max_abs"] = torch.tensor(part.max_abs, dtype=torch.float64)
    data: bytes = safetensors.torch.save(tensors)
    return data


def read_statistics(path: Path, key: LayerKey) -> RowStatistics:
    """Read one layer's statistics.

    Raises:
        BadShardError: the file can't be read or lacks them.
    """
    prefix = layout.layer_folder(*key)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {
                name: file.get_tensor(f"{prefix}/{name}")
                for name in ("count", "mean", "mean_square", "mean_norm", "max_abs")
            }
        count, mean_norm, max_abs = (float(tensors[name]) for name in ("count", "mean_norm", "max_abs"))
    except (safetensors.SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise BadShardError(f"{path}: no usable statistics of {prefix} ({error})") from error
    return RowStatistics(int(count), tensors["mean"], tensors["mean_square"], mean_norm, max_abs)


def merge_files(paths: Iterable[Path], keys: Iterable[LayerKey]) -> bytes:
    """The contents of the merged file, from the shards' files in shard order."""
    shards = list(paths)
    return statistics_bytes({key: merge([read_statistics(path, key) for path in shards]) for key in keys})
