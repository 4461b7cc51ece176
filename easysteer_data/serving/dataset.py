"""Rows of a run as a map-style data set that hands out whole batches. Knows no split, order or Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from easysteer_data.serving.sampler import RowNumbers
from easysteer_data.shards import Run
from easysteer_data.types import Stream

Batch = dict[str, torch.Tensor]


class ActivationDataset(Dataset[Batch]):
    """Chosen rows of some layers of a run, memory-mapped; can be pickled for spawned loader workers.

    A batch is a dict of tensors, rows in the order asked for:

    - `x`: [B, L, width], or [B, width] where one layer was given as an int.
    - `y`: int64 [B] class index (-1: none) or float32 [B] (NaN: none); absent where the run has no labels.
    - `prompt`, `position`, `token_id`: int32 [B].
    - `weight`: float32 [B], where classes have weights.

    Args:
        run: the run.
        stream: which of its streams.
        layers: decoder blocks in the order of the L axis, or one block as an int.
        rows: int64 [n], the run's row numbers that make up the data set.
        transform: makes `x` of the rows [B, L, width], or [B, width] of one layer, in the storage dtype,
            which it may overwrite; None leaves them so.
        class_weights: float32 [classes], the weight of a row of each class.
    """

    def __init__(
        self,
        run: Run,
        stream: Stream,
        layers: int | Sequence[int],
        rows: torch.Tensor,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        class_weights: torch.Tensor | None = None,
    ) -> None:
        self.rows = rows
        self._run = run
        self._stream = stream
        self._one_layer = isinstance(layers, int)
        self._layer_ids = [layers] if isinstance(layers, int) else list(layers)
        self._transform = transform
        self._class_weights = class_weights

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | RowNumbers) -> Batch:
        """One row without the axis B, or the batch of an int64 array of places in `rows`."""
        if isinstance(index, int):
            return {name: values[0] for name, values in self.__getitems__([index]).items()}
        return self._batch(_taken(self.rows, index))

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of a list of places, as a DataLoader with `batch_size` asks for it."""
        return self._batch(self.rows[torch.tensor(indices)])

    def batches(self, parts: Sequence[RowNumbers]) -> Iterator[Batch]:
        """The batches of several int64 arrays of places.

        What costs a call for each batch, however few rows it has, is done once for all of them; the rows are
        copied batch by batch, each into memory of its own, where the processor's caches still hold it.
        """
        rows = _taken(self.rows, np.concatenate(parts))
        located = self._run.locate(self._stream, self._layer_ids, rows)
        labels = self._labels(rows)
        sizes = [len(part) for part in parts]
        columns = zip(*(torch.split(values, sizes) for values in labels.values()), strict=True)
        names = ("x", *labels)
        for x, of_batch in zip(located.parts(sizes), columns, strict=True):
            yield dict(zip(names, (self._transformed(x), *of_batch), strict=True))

    def _batch(self, rows: torch.Tensor) -> Batch:
        (x,) = self._run.locate(self._stream, self._layer_ids, rows).parts([len(rows)])
        return {"x": self._transformed(x), **self._labels(rows)}

    def _transformed(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [B * L, width] as they are served."""
        if not self._one_layer:
            x = x.view(-1, len(self._layer_ids), x.shape[1])
        return x if self._transform is None else self._transform(x)

    def _labels(self, rows: torch.Tensor) -> Batch:
        """All of a batch but its `x`."""
        index = self._run.index
        numbers = rows.numpy()
        batch = {
            "prompt": _taken(index.prompt, numbers),
            "position": _taken(index.position, numbers),
            "token_id": _taken(index.token_id, numbers),
        }
        if self._run.labels is not None:
            batch["y"] = _taken(self._run.labels, numbers)
            if self._class_weights is not None:
                batch["weight"] = self._class_weights[batch["y"]]
        return batch


def _taken(column: torch.Tensor, rows: RowNumbers) -> torch.Tensor:
    """Elements of a column [n]; numpy takes single numbers in a fifth of torch's time."""
    return torch.from_numpy(column.numpy().take(rows))
