"""What a capture gives back: labelled rows per layer, and views of them per sample. Pure torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch


class RowLabels:
    """Labels of a layer's rows, one entry a row.

    Args:
        req_ids: the request that each row belongs to, as in its RequestOutput.
        positions: absolute token positions in prompt + completion.
        token_ids: the tokens that the model read there.
        n_rows: where given, `req_ids` are one a request, and these its rows, which follow each other.
    """

    def __init__(
        self,
        req_ids: Sequence[str],
        positions: Sequence[int] | torch.Tensor,
        token_ids: Sequence[int] | torch.Tensor,
        n_rows: Sequence[int] | None = None,
    ) -> None:
        self._req_ids = req_ids
        self._positions = positions
        self._token_ids = token_ids
        self._n_rows = n_rows

    def __len__(self) -> int:
        return len(self._req_ids) if self._n_rows is None else sum(self._n_rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowLabels):
            return NotImplemented
        return (self.req_ids, self.positions, self.token_ids) == (
            other.req_ids,
            other.positions,
            other.token_ids,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"RowLabels(req_ids={self.req_ids!r}, positions={self.positions!r}, token_ids={self.token_ids!r})"
        )

    # Lists of all rows take longer than the capture of the last ones: made when they are asked for.

    @cached_property
    def req_ids(self) -> Sequence[str]:
        """The request of each row."""
        if self._n_rows is None:
            return self._req_ids
        return [req_id for req_id, n in zip(self._req_ids, self._n_rows, strict=True) for _ in range(n)]

    @cached_property
    def positions(self) -> Sequence[int]:
        """Absolute token position of each row."""
        return _as_list(self._positions)

    @cached_property
    def token_ids(self) -> Sequence[int]:
        """The token that the model read at each row."""
        return _as_list(self._token_ids)

    def counts(self) -> Mapping[str, int]:
        """Rows of each request; of one without any there may be none."""
        if self._n_rows is None:
            return Counter(self._req_ids)
        return dict(zip(self._req_ids, self._n_rows, strict=True))


def _as_list(values: Sequence[int] | torch.Tensor) -> Sequence[int]:
    return values.tolist() if isinstance(values, torch.Tensor) else values


class CaptureResult:
    """Rows of a capture.

    Args:
        layers: true layer id -> Tensor [total_rows, dim], samples in prompt order, positions ascending.
        meta: true layer id -> RowLabels; empty or None for rows without labels.
        outputs: vLLM RequestOutputs in prompt order.
        layouts: for attention heads, true layer id -> {"width", "num_heads", "head_size"}.
        gates: fault -> number of rows and layers that have it, where faults are counted and not raised.

    Raises:
        ValueError: labels for some layers only, or a layout of no layer or of another width.
        RuntimeError: another number of labels than rows; names layer and both counts.
    """

    def __init__(
        self,
        layers: Mapping[int, torch.Tensor],
        meta: Mapping[int, RowLabels] | None,
        outputs: Sequence[Any],
        layouts: Mapping[int, Mapping[str, int]] | None = None,
        gates: Mapping[str, int] | None = None,
    ) -> None:
        self.layers = dict(layers)
        self.outputs = list(outputs)
        self.layouts = layouts
        self.gates = dict(gates or {})
        self._meta = dict(meta or {})
        self._check_layouts()
        self._bounds = self._check_labels()

    def __repr__(self) -> str:
        shapes = {layer_id: tuple(self.layers[layer_id].shape) for layer_id in self.layer_ids[:1]}
        return f"CaptureResult({len(self)} samples, layers {self.layer_ids}, shape of the first {shapes})"

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def layer_ids(self) -> list[int]:
        """True layer ids, ascending."""
        return sorted(self.layers)

    @property
    def labelled(self) -> bool:
        """Whether there are row labels."""
        return bool(self._meta)

    def rows(self, layer_id: int) -> torch.Tensor:
        """All rows of a layer, [total_rows, dim]."""
        return self.layers[layer_id]

    def meta(self, layer_id: int) -> RowLabels:
        """Labels of a layer's rows: req_ids, positions and token_ids, one a row."""
        return self._meta[layer_id]

    def sample(self, i: int) -> dict[int, torch.Tensor]:
        """Rows of prompt i: {layer id: [rows, dim]}, views."""
        return {layer_id: self.layers[layer_id][self._span(layer_id, i)] for layer_id in self.layer_ids}

    def sample_positions(self, i: int) -> list[int]:
        """Absolute positions of prompt i's rows."""
        return list(self._first_labels().positions[self._span(self.layer_ids[0], i)])

    def sample_token_ids(self, i: int) -> list[int]:
        """Tokens that the model read at prompt i's rows."""
        return list(self._first_labels().token_ids[self._span(self.layer_ids[0], i)])

    def to_nested(self) -> list[list[torch.Tensor]]:
        """Rows as [sample][layer], layers ascending by id."""
        return [list(self.sample(i).values()) for i in range(len(self))]

    def _first_labels(self) -> RowLabels:
        return self._meta[self.layer_ids[0]]

    def _span(self, layer_id: int, i: int) -> slice:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i}: there are {len(self)}")
        if not self.labelled:
            raise RuntimeError("these rows have no labels, so they can't be split by sample")
        bounds = self._bounds[layer_id]
        return slice(bounds[i % len(self)], bounds[i % len(self) + 1])

    def _check_layouts(self) -> None:
        for layer_id, layout in (self.layouts or {}).items():
            if layer_id not in self.layers:
                raise ValueError(f"layout of layer {layer_id}, but there are no rows of that layer")
            width = self.layers[layer_id].shape[-1]
            if layout["width"] != width:
                raise ValueError(f"layout of layer {layer_id} has width {layout['width']}, the rows {width}")

    def _check_labels(self) -> dict[int, list[int]]:
        """Return, per layer, where each sample's rows begin; one entry more than samples."""
        bounds: dict[int, list[int]] = {}
        of_labels: dict[int, list[int]] = {}  # layers mostly share their labels
        for layer_id, rows in self.layers.items() if self.labelled else ():
            if layer_id not in self._meta:
                raise ValueError(f"row labels missing for layer {layer_id}")
            labels = self._meta[layer_id]
            if len(labels) != rows.shape[0]:
                raise RuntimeError(f"layer {layer_id} has {rows.shape[0]} rows but {len(labels)} labels")
            if id(labels) not in of_labels:
                counts = labels.counts()
                n_rows = (counts.get(output.request_id, 0) for output in self.outputs)
                of_labels[id(labels)] = list(accumulate(n_rows, initial=0))
            bounds[layer_id] = of_labels[id(labels)]
        return bounds
