"""Linear probes whose weights follow from moments of the train split: what they share. In float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.contract import Training
from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.layer_result import Task
from easysteer_data.probes.readout import Shape, with_reference
from easysteer_data.probes.standardise import with_layers


class ClosedFormProbe(ABC):
    """`weight @ ((row - mean) / std) + bias` in every layer, learned in one read of any number of rows.

    Attributes:
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        label_names: the classes; empty for numbers.

    Args:
        layer_ids: decoder blocks.
        width: elements of a row.
        label_names: the classes, in the order of their index.
    """

    kind: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]] = ("classes",)
    pools_prompts: ClassVar[bool] = False

    def __init__(self, layer_ids: Sequence[int], width: int, label_names: Sequence[str] = ()) -> None:
        self.layer_ids = tuple(layer_ids)
        self.label_names = tuple(label_names)
        if len(self.label_names) == 1:
            raise SettingsError(f"a probe needs at least two classes, found {list(label_names)}")
        self.shape = Shape(len(self.layer_ids), width, len(self.label_names))
        n_layers, n_logits = self.shape.n_layers, self.shape.n_logits
        self.weight = torch.zeros(n_layers, n_logits, width, dtype=torch.float64)
        self.bias = torch.zeros(n_layers, n_logits, dtype=torch.float64)
        self.mean = torch.zeros(n_layers, width, dtype=torch.float64)
        self.std = torch.ones(n_layers, width, dtype=torch.float64)

    @abstractmethod
    def solve(self, moments: CrossMoments, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [logits, width] and bias [logits] of one layer, on standardised rows.

        Raises:
            RunError: there is none.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """See Probe."""
        return {
            "layer_ids": list(self.layer_ids),
            "width": self.shape.width,
            "label_names": list(self.label_names),
        }

    def fit(self, data: ProbeData, training: Training) -> None:  # noqa: ARG002 - takes one pass, no epochs
        """See Probe."""
        moments = CrossMoments.of_batches(data.batches("train"), self.shape.n_classes)
        self.mean, self.std = moments.mean, moments.std
        for layer, layer_id in enumerate(self.layer_ids):
            try:
                self.weight[layer], self.bias[layer] = self.solve(moments, layer)
            except RunError as error:
                raise RunError(f"layer {layer_id}: {self.kind} has no solution ({error})") from error

    def score(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """See Probe."""
        rows = (with_layers(x).double() - self.mean) / self.std
        logits = torch.einsum("nlw,lcw->nlc", rows, self.weight) + self.bias
        return with_reference(logits) if self.label_names else logits

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """See Probe."""
        return scores.softmax(dim=-1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """See Probe."""
        return {"weight": self.weight, "bias": self.bias, "mean": self.mean, "std": self.std}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See Probe."""
        self.weight, self.bias, self.mean, self.std = (
            tensors[name] for name in ("weight", "bias", "mean", "std")
        )
