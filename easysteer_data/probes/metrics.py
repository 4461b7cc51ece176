"""What training logs of every layer, over batches and ranks. Knows logits and classes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAccuracy, MulticlassAUROC

from easysteer_data.errors import RunError
from easysteer_data.types import Split


def check_classes(split: Split, counts: Sequence[int], names: Sequence[str]) -> None:
    """Refuse a split on which AUROC has no meaning.

    Args:
        split: which split, for the message.
        counts: rows of each class.
        names: the classes.

    Raises:
        RunError: a class has no row in the split.
    """
    if min(counts) == 0:
        found = ", ".join(f"{count} of {name!r}" for count, name in zip(counts, names, strict=True))
        raise RunError(
            f"AUROC is undefined on split {split!r}: its rows are {found}, and every class needs one;"
            " give the split more groups or change the split's seed"
        )


@dataclass(frozen=True, slots=True)
class LayerScores:
    """Figures of every layer on one split, in the probe's order of layers, each between 0 and 1."""

    accuracy: list[float]
    auroc: list[float]


class LayerMetrics(nn.Module):
    """Measures every layer on one split: feed batches to `update`, then ask for `counts` and `scores`.

    Args:
        n_layers: layers of the probe.
        n_classes: classes of the labels, at least 2.
    """

    def __init__(self, n_layers: int, n_classes: int) -> None:
        super().__init__()
        self._classes = ClassCounts(n_classes)
        self._accuracy = nn.ModuleList(_accuracy(n_classes) for _ in range(n_layers))
        self._auroc = nn.ModuleList(_auroc(n_classes) for _ in range(n_layers))

    def update(self, logits: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch: logits [rows, layers, 1] for two classes, else one a class; target int64 [rows]."""
        # Scores between 0 and 1, since torchmetrics guesses batch by batch whether it was given logits.
        # For two classes by a map that, unlike the sigmoid, keeps large logits apart.
        logits = logits.detach().double()
        scores = (
            (nn.functional.softsign(logits[..., 0]) + 1) / 2 if logits.shape[-1] == 1 else logits.softmax(-1)
        )
        self._classes.update(target)
        for metrics in (self._accuracy, self._auroc):
            for layer, metric in enumerate(metrics):
                cast("Metric", metric).update(scores[:, layer], target)

    def counts(self) -> list[int]:
        """Rows of each class, over all ranks."""
        return [int(count) for count in self._classes.compute()]

    def scores(self) -> LayerScores:
        """Figures over all ranks; every class must have been seen, see `check_classes`."""
        return LayerScores(_values(self._accuracy), _values(self._auroc))

    def reset(self) -> None:
        """Forget every batch."""
        for metric in (self._classes, *self._accuracy, *self._auroc):
            cast("Metric", metric).reset()


def _accuracy(n_classes: int) -> Metric:
    # Labels and shapes are checked once a batch by the probe, not once a layer.
    if n_classes == 2:
        return BinaryAccuracy(validate_args=False)
    return MulticlassAccuracy(n_classes, average="micro", validate_args=False)


def _auroc(n_classes: int) -> Metric:
    if n_classes == 2:
        return BinaryAUROC(validate_args=False)
    return MulticlassAUROC(n_classes, average="macro", validate_args=False)


def _values(metrics: nn.ModuleList) -> list[float]:
    return [float(cast("Metric", metric).compute()) for metric in metrics]


class ClassCounts(Metric):
    """Rows of each class."""

    full_state_update = False
    counts: torch.Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(n_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, target: torch.Tensor) -> None:
        """Add the classes of a batch, int64 [rows]."""
        self.counts += torch.bincount(target, minlength=len(self.counts))

    def compute(self) -> torch.Tensor:
        """Rows of each class, int64 [classes]."""
        return self.counts


class LayerErrors(Metric):
    """Mean error of every layer, over batches and ranks."""

    full_state_update = False
    sums: torch.Tensor
    n_examples: torch.Tensor

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(n_layers, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("n_examples", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, errors: torch.Tensor, n_examples: int) -> None:
        """Add the mean errors [layers] of a batch."""
        # Never in place: processes that are spawned share the memory of the first state.
        self.sums = self.sums + errors.detach().double() * n_examples
        self.n_examples = self.n_examples + n_examples

    def compute(self) -> torch.Tensor:
        """Mean error of every layer, float64 [layers]."""
        return self.sums / self.n_examples
