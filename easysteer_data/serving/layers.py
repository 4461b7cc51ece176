"""The layers of a run that are served, and how their rows become `x`. Knows no split and no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.serving.dataset import ActivationDataset
from easysteer_data.serving.normalise import Normaliser
from easysteer_data.shards import Run
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class ServedLayers:
    """Some layers of one stream.

    Attributes:
        run: the run.
        stream: which of its streams.
        layers: decoder blocks in the order of the L axis, one as an int, which leaves out that axis, or
            None for all.

    Raises:
        RunError: the run has no such stream.
        SettingsError: a layer was asked for that the run does not hold.
    """

    run: Run
    stream: Stream
    layers: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        stored = self.run.layer_ids(self.stream)
        unknown = sorted(set(self.layer_ids) - set(stored))
        if unknown or not self.layer_ids:
            asked = f"layers {', '.join(map(str, unknown))} were" if unknown else "no layer was"
            held = ", ".join(map(str, stored))
            raise SettingsError(f"{asked} asked for; {self.run.path} holds {held} of {self.stream}")

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Decoder blocks, in the order of the L axis."""
        if self.layers is None:
            return self.run.layer_ids(self.stream)
        return (self.layers,) if isinstance(self.layers, int) else tuple(self.layers)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.run.manifest.header.streams[self.stream].width

    def dataset(
        self,
        rows: torch.Tensor,
        normaliser: Normaliser | None,
        dtype: torch.dtype,
        class_weights: torch.Tensor | None = None,
    ) -> ActivationDataset:
        """Rows (int64 [n]) as a data set; without a normaliser, `x` is left as the run gives it."""
        layers = self.layers if isinstance(self.layers, int) else self.layer_ids
        read_as = self.run.manifest.header.streams[self.stream].read_dtype
        as_it_is = normaliser is None or (normaliser.method == "none" and dtype == read_as)
        transform = None if normaliser is None or as_it_is else partial(normaliser, dtype=dtype)
        return ActivationDataset(self.run, self.stream, layers, rows, transform, class_weights)
