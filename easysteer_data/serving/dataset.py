"""Rows of a run as a map-style data set that hands out whole batches. Knows no split, order or Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from easysteer_data.serving.host import available_bytes
from easysteer_data.serving.sampler import RowNumbers
from easysteer_data.shards import Run
from easysteer_data.types import Stream

Batch = dict[str, torch.Tensor]
_COPIED_ROWS = 4096  # at once, into memory that holds all


class ActivationDataset(Dataset[Batch]):
    """Chosen rows of some layers of a run, memory-mapped; can be pickled for spawned loader workers.

    A batch is a dict of tensors, rows in the order asked for:

    - `x`: [B, L, width], or [B, width] where one layer was given as an int.
    - `y`: int64 [B] class index (-1: none) or float32 [B] (NaN: none); absent where the run has no labels.
    - `prompt`, `position`, `token_id`: int32 [B].
    - `weight`: float32 [B], where classes have weights.

    Attributes:
        rows: int64 [n], the run's row numbers that make up the data set.
        held: their values as `copied` gives them, to read from memory; None = from the files.

    Args:
        run: the run.
        stream: which of its streams.
        layers: decoder blocks in the order of the L axis, or one block as an int.
        rows: int64 [n], see above.
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
        self.held: torch.Tensor | None = None
        self._run = run
        self._width = run.manifest.header.streams[stream].width
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
        (batch,) = self.batches([index])
        return batch

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of a list of places, as a DataLoader with `batch_size` asks for it."""
        return self[np.array(indices, dtype=np.int64)]

    def batches(self, parts: Sequence[RowNumbers]) -> Iterator[Batch]:
        """The batches of several int64 arrays of places.

        What costs a call for each batch, however few rows it has, is done once for all of them; the rows are
        copied batch by batch, each into memory of its own, where the processor's caches still hold it.
        """
        places = np.concatenate(parts)
        rows = _taken(self.rows, places)
        labels = self._labels(rows)
        sizes = [len(part) for part in parts]
        columns = zip(*(torch.split(values, sizes) for values in labels.values()), strict=True)
        names = ("x", *labels)
        for x, of_batch in zip(self._values(rows, places, sizes), columns, strict=True):
            yield dict(zip(names, (self._transformed(x), *of_batch), strict=True))

    def copied(self) -> torch.Tensor:
        """The values of all rows in memory, [n, L * width], as the run gives them.

        Raises:
            MemoryError: there is less memory than they need.
        """
        parts = torch.split(self.rows, _COPIED_ROWS)
        first = self._run.gather(self._stream, self._layer_ids, parts[0]).flatten(1)
        n_bytes = len(self.rows) * first[0].nbytes
        if n_bytes > (free := available_bytes()):
            raise MemoryError(
                f"{len(self.rows):,} rows of {len(self._layer_ids)} layers of {self._run.path} take "
                f"{n_bytes / 1e9:.1f} GB in memory, where {free / 1e9:.1f} GB are available; set "
                f"loading.in_memory to false, to read them from the files, or serve fewer rows or layers"
            )
        values = torch.empty(len(self.rows), first.shape[1], dtype=first.dtype)
        for part, rows in zip(torch.split(values, _COPIED_ROWS), parts, strict=True):
            part.copy_(self._run.gather(self._stream, self._layer_ids, rows).flatten(1))
        return values

    def _values(self, rows: torch.Tensor, places: RowNumbers, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """The values of the next `sizes[i]` rows at a time; all layers of a row lie together."""
        if self.held is None:
            return self._run.locate(self._stream, self._layer_ids, rows).parts(sizes)
        return (
            self.held.index_select(0, part) for part in torch.split(torch.from_numpy(places), list(sizes))
        )

    def _transformed(self, x: torch.Tensor) -> torch.Tensor:
        """The values of B rows as they are served."""
        n_layers = len(self._layer_ids)
        x = x.view(-1, self._width) if self._one_layer else x.view(-1, n_layers, self._width)
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
