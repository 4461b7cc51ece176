"""A probe's scores on a split, and their figures in every layer. Knows probes and examples, no settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from easysteer_data.probes.bootstrap import Bootstrap
from easysteer_data.probes.contract import Probe
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.details import BestLayer, CalibrationBin, RocCurve, ScoredPrompt
from easysteer_data.probes.figures import ClassScores, bin_of, class_figures, number_figures
from easysteer_data.probes.layer_result import Figures
from easysteer_data.probes.ranking import roc_points
from easysteer_data.types import Split

Chances = Callable[[torch.Tensor], torch.Tensor]

_MAX_POINTS = 300  # of a curve in the report
_MAX_PREDICTIONS = 1000


def scores_of(probe: Probe, data: ProbeData, split: Split) -> torch.Tensor:
    """Scores of every example of a split, float64 [examples, layers, classes], in one read."""
    return torch.cat([probe.score(batch["x"], batch.get("example")) for batch in data.batches(split)])


@dataclass(frozen=True, slots=True)
class Measurement:
    """How figures are made of scores.

    Attributes:
        data: the examples.
        bootstrap: how intervals are made.
        n_bins: bins of the calibration error.
        n_prompts: prompts at each end to tell of.
    """

    data: ProbeData
    bootstrap: Bootstrap
    n_bins: int
    n_prompts: int

    def figures(self, split: Split, scores: torch.Tensor, chances: Chances) -> Figures:
        """Figures of one layer's scores [examples, classes] of a split."""
        target, groups = self.data.targets(split), self.data.groups(split)
        if self.data.task == "numeric":
            return number_figures(scores[:, 0], target, groups, self.bootstrap)
        return class_figures(
            ClassScores(scores, chances(scores), target), groups, self.bootstrap, self.n_bins
        )

    def details(self, scores: torch.Tensor, chances: Chances) -> BestLayer:
        """Curves and prompts of one layer's scores [examples, classes] of the test split."""
        target = self.data.targets("test")
        if self.data.task == "numeric":
            top, bottom = self._ends(scores[:, 0], [f"{value:.6g}" for value in scores[:, 0].tolist()])
            pairs = list(zip(target.tolist(), scores[:, 0].tolist(), strict=True))
            step = -(-len(pairs) // _MAX_PREDICTIONS)
            return BestLayer(top=top, bottom=bottom, predictions=tuple(pairs[::step]))
        examples = ClassScores(scores, chances(scores), target)
        names = self.data.label_names
        if len(names) == 2:
            ranked = scores[:, 1] - scores[:, 0]
        else:
            ranked = examples.chances.gather(1, target[:, None])[:, 0].log()
        top, bottom = self._ends(ranked, [names[label] for label in examples.predicted.tolist()])
        return BestLayer(
            roc=_roc(examples, names),
            calibration=_calibration(examples, self.n_bins),
            confusion=_confusion(examples),
            top=top,
            bottom=bottom,
        )

    def _ends(
        self, ranked: torch.Tensor, predicted: list[str]
    ) -> tuple[tuple[ScoredPrompt, ...], tuple[ScoredPrompt, ...]]:
        """The prompts of the highest and of the lowest mean score [examples]; its first row names it."""
        prompts, place, n_rows = torch.unique_consecutive(
            self.data.prompts("test"), return_inverse=True, return_counts=True
        )
        means = torch.zeros(len(prompts), dtype=torch.float64).index_add_(0, place, ranked) / n_rows
        first = torch.cat([torch.zeros(1, dtype=torch.int64), n_rows.cumsum(0)[:-1]])
        table = self.data.datamodule.run.prompts(["id", "label"])
        ids, labels = table["id"], table["label"]

        def told(index: int) -> ScoredPrompt:
            prompt = int(prompts[index])
            text = predicted[int(first[index])]
            return ScoredPrompt(
                prompt, ids[prompt].as_py(), str(labels[prompt].as_py()), text, float(means[index])
            )

        order = means.argsort(stable=True).tolist()
        lowest, highest = order[: self.n_prompts], order[::-1][: self.n_prompts]
        return tuple(map(told, highest)), tuple(map(told, lowest))


def _roc(examples: ClassScores, names: tuple[str, ...]) -> tuple[RocCurve, ...]:
    curves = []
    for label in [1] if len(names) == 2 else range(len(names)):
        false, true = roc_points(*examples.one_against_rest(label), _MAX_POINTS)
        curves.append(RocCurve(names[label], tuple(false.tolist()), tuple(true.tolist())))
    return tuple(curves)


def _calibration(examples: ClassScores, n_bins: int) -> tuple[CalibrationBin, ...]:
    chance, came_true = examples.certainty()
    bins = bin_of(chance, n_bins)
    return tuple(
        CalibrationBin(
            low=number / n_bins,
            high=(number + 1) / n_bins,
            n=int(own.sum()),
            predicted=float(chance[own].mean()),
            observed=float(came_true[own].double().mean()),
        )
        for number in range(n_bins)
        if (own := bins == number).any()
    )


def _confusion(examples: ClassScores) -> tuple[tuple[int, ...], ...]:
    n = examples.n_classes
    counts = torch.bincount(examples.target * n + examples.predicted, minlength=n * n).view(n, n)
    return tuple(tuple(row) for row in counts.tolist())
