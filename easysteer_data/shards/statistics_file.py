"""Statistics of layers as a safetensors file, of one shard or merged. Knows keys and shapes, no row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch

from easysteer_data.errors import BadShardError
from easysteer_data.shards import layout
from easysteer_data.shards.index import LayerKey
from easysteer_data.shards.statistics import LabelMeans, LayerStatistics, RowStatistics
from easysteer_data.shards.storage import StorageError
from easysteer_data.types import SPLITS

Tensors = Mapping[str, torch.Tensor]

# Of a dtype that numpy or torch has not, or a shape that is none of ours.
_UNUSABLE = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
_ERROR = {
    "count": "n_rows",
    "sum_square": "sum_square",
    "relative_error": "relative_error",
    "mean_cosine": "mean_cosine",
    "min_cosine": "min_cosine",
}


def statistics_bytes(layers: Mapping[LayerKey, LayerStatistics]) -> bytes:
    """A safetensors file of `<stream>/layer-012/<name>`; all but storage_error [splits, ...]."""
    tensors = {
        f"{layout.layer_folder(*key)}/{name}": tensor
        for key, layer in layers.items()
        for name, tensor in _layer_tensors(layer).items()
    }
    data: bytes = safetensors.numpy.save(tensors)
    return data


def read_statistics(path: Path, key: LayerKey) -> LayerStatistics:
    """Read one layer's statistics.

    Raises:
        BadShardError: the file can't be read or lacks them.
    """
    return next(_read_layers(path, [key]))


def statistics_of(tensors: Tensors, key: LayerKey, source: Path | str) -> LayerStatistics:
    """One layer's statistics out of the tensors of a file; `source` names it.

    Raises:
        BadShardError: they are not there, or of other shapes.
    """
    folder = layout.layer_folder(*key)
    own = {name.removeprefix(folder + "/"): x for name, x in tensors.items() if name.startswith(folder + "/")}
    try:
        return _layer_of(own)
    except KeyError as error:
        raise BadShardError(f"{source}: no usable statistics of {folder} (no {error})") from error
    except _UNUSABLE as error:
        raise BadShardError(f"{source}: no usable statistics of {folder} ({error})") from error


class StatisticsMerge:
    """The merged statistics of the shards so far, which must come in shard order.

    Attributes:
        n_shards: how many.

    Args:
        keys: the layers.
    """

    def __init__(self, keys: Iterable[LayerKey]) -> None:
        self._keys = list(keys)
        self._layers: dict[LayerKey, LayerStatistics] = {}
        self.n_shards = 0

    def add(self, shard: Mapping[LayerKey, LayerStatistics]) -> None:
        """Take the next shard in."""
        self._add((key, shard[key]) for key in self._keys)

    def add_file(self, path: Path) -> None:
        """Take the next shard's file in; one of its layers is in memory at a time.

        Raises:
            BadShardError: the file can't be read or lacks a layer; nothing of it is taken in.
        """
        self._add(zip(self._keys, _read_layers(path, self._keys), strict=True))

    def _add(self, shard: Iterable[tuple[LayerKey, LayerStatistics]]) -> None:
        layers = dict(self._layers)
        for key, more in shard:
            layers[key] = layers[key].merged(more) if key in layers else more
        self._layers = layers
        self.n_shards += 1

    def to_bytes(self) -> bytes:
        """The contents of the merged file."""
        return statistics_bytes(self._layers)


def _read_layers(path: Path, keys: Sequence[LayerKey]) -> Iterator[LayerStatistics]:
    folder = layout.layer_folder(*keys[0])
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names: dict[str, list[str]] = {}
            for name in file.keys():  # noqa: SIM118 - no mapping, only has this method
                names.setdefault("/".join(name.split("/")[:2]), []).append(name)
            for key in keys:
                folder = layout.layer_folder(*key)
                tensors = {name: torch.from_numpy(file.get_tensor(name)) for name in names.get(folder, ())}
                yield statistics_of(tensors, key, path)
    except (safetensors.SafetensorError, OSError, *_UNUSABLE) as error:
        raise BadShardError(f"{path}: no usable statistics of {folder} ({error})") from error


def _layer_tensors(layer: LayerStatistics) -> dict[str, np.ndarray]:
    splits = layer.splits
    tensors = {
        "count": np.array([split.n_rows for split in splits], dtype=np.int64),
        "mean": np.stack([split.mean.numpy() for split in splits]),
        "mean_square": np.stack([split.mean_square.numpy() for split in splits]),
        "mean_norm": np.array([split.mean_norm for split in splits]),
        "max_abs": np.array([split.max_abs for split in splits]),
    }
    means = [split.by_label for split in splits if split.by_label is not None]
    if means:
        tensors["by_label/count"] = np.stack([label.n_rows.numpy() for label in means])
        tensors["by_label/mean"] = np.stack([label.mean.numpy() for label in means])
    if layer.storage_error is not None:
        for name, field in _ERROR.items():
            tensors[f"storage_error/{name}"] = np.array(getattr(layer.storage_error, field), dtype=np.float64)
    return tensors


def _layer_of(tensors: Tensors) -> LayerStatistics:
    error = None
    if "storage_error/count" in tensors:
        values = {field: float(tensors[f"storage_error/{name}"]) for name, field in _ERROR.items()}
        error = StorageError(int(values.pop("n_rows")), **values)
    return LayerStatistics(tuple(_split_of(tensors, place) for place in range(len(SPLITS))), error)


def _split_of(tensors: Tensors, place: int) -> RowStatistics:
    by_label = None
    if "by_label/count" in tensors:
        by_label = LabelMeans(tensors["by_label/count"][place], tensors["by_label/mean"][place])
    return RowStatistics(
        int(tensors["count"][place]),
        tensors["mean"][place],
        tensors["mean_square"][place],
        float(tensors["mean_norm"][place]),
        float(tensors["max_abs"][place]),
        by_label,
    )
