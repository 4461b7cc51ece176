"""How well directions tell classes apart on rows that they were not fitted on. Knows rows, no run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.vectors.contrast import LabelledRows


@dataclass(frozen=True, slots=True)
class SplitFigures:
    """What one layer's direction is worth on one split's rows, projected on it.

    Attributes:
        auroc: area under the ROC curve: chance that a positive row lies above a negative one.
        pair_accuracy: share of pairs whose positive side lies above the negative one, a tie counting half;
            None where no group has both.
        n_pairs: how many pairs.
        label_variance: share of the variance that lies between the classes, 0 to 1.
        confound_auroc: how well the direction tells the confound's values apart, 0.5 to 1: the best of one
            value against the others, either way round; None where there are not two values.
        confound_chance: what `confound_auroc` of a direction that knows nothing of the confound stays below,
            three standard errors above 0.5; None as above.
        confound_variance: share of the variance that lies between the confound's values; None as above.
        confound_pair_accuracy: `pair_accuracy` of the confound's part of the projections alone: where letters
            are the confound, the share of pairs whose positive side has the letter that lies higher. None
            without pairs, and where there are not two values that have rows of both classes.
        free_auroc: `auroc` of the projections less the confound's part; as `auroc` where it has none.
        free_pair_accuracy: `pair_accuracy`, likewise.
    """

    auroc: float
    pair_accuracy: float | None
    n_pairs: int
    label_variance: float
    confound_auroc: float | None
    confound_chance: float | None
    confound_variance: float | None
    confound_pair_accuracy: float | None
    free_auroc: float
    free_pair_accuracy: float | None

    @property
    def is_confounded(self) -> bool:
        """Whether the direction separates the confound, and better than the classes."""
        if self.confound_auroc is None or self.confound_chance is None:
            return False
        return self.confound_auroc > max(self.auroc, self.confound_chance)


def measure(rows: LabelledRows, directions: torch.Tensor) -> list[SplitFigures]:
    """Figures of each layer; the rows must be of both classes.

    Args:
        rows: a split's rows, of L layers.
        directions: float64 [L, width], of any length above 0.
    """
    units = directions / directions.norm(dim=-1, keepdim=True)
    scores = torch.einsum("nlw,lw->nl", rows.x, units)
    n_pairs, paired = _pair_accuracies(rows, scores)
    auroc, label_variance = aurocs(scores, rows.positive), shares_of_variance(scores, rows.positive.long())
    confound, part = _Confound.of(rows, scores), confound_part(rows, scores)
    free = scores if part is None else scores - part
    free_auroc, (_, free_paired) = aurocs(free, rows.positive), _pair_accuracies(rows, free)
    part_paired = None if part is None else _pair_accuracies(rows, part)[1]
    return [
        SplitFigures(
            auroc=float(auroc[layer]),
            pair_accuracy=_at(paired, layer),
            n_pairs=n_pairs,
            label_variance=float(label_variance[layer]),
            confound_auroc=None if confound is None else float(confound.auroc[layer]),
            confound_chance=None if confound is None else confound.chance,
            confound_variance=None if confound is None else float(confound.variance[layer]),
            confound_pair_accuracy=_at(part_paired, layer),
            free_auroc=float(free_auroc[layer]),
            free_pair_accuracy=_at(free_paired, layer),
        )
        for layer in range(len(units))
    ]


def confound_part(rows: LabelledRows, scores: torch.Tensor) -> torch.Tensor | None:
    """What each value of the confound adds to the scores [n, L] of its rows, float64 [n, L].

    A value's part is the mean of its class means, less the mean of this over the values: so a class that
    goes more often with one value has no share in it. 0 for rows of no value, and of one that lacks a class;
    None where there are not two values to compare.
    """
    values, sides = rows.means_by_confound(scores)
    if len(values) < 2:
        return None
    centres = sides.mean(dim=1)
    part = torch.zeros_like(scores)
    for value, own in zip(values, centres - centres.mean(dim=0), strict=True):
        part[rows.confound == value] = own
    return part


def _pair_accuracies(rows: LabelledRows, scores: torch.Tensor) -> tuple[int, torch.Tensor | None]:
    """Pairs, and of each column of scores [n, L] the share that is the right way up, float64 [L]."""
    above, below = rows.pairs(scores)
    if len(above) == 0:
        return 0, None
    return len(above), ((above > below).double() + (above == below).double() / 2).mean(dim=0)


def _at(values: torch.Tensor | None, layer: int) -> float | None:
    return None if values is None else float(values[layer])


@dataclass(frozen=True, slots=True)
class _Confound:
    """See SplitFigures; `auroc` and `variance` of each layer, float64 [L]."""

    auroc: torch.Tensor
    chance: float
    variance: torch.Tensor

    @classmethod
    def of(cls, rows: LabelledRows, scores: torch.Tensor) -> _Confound | None:
        known = rows.confound >= 0
        values, codes = torch.unique(rows.confound[known], return_inverse=True)
        if len(values) < 2:
            return None
        scores = scores[known]
        separations = [
            torch.maximum(one, 1 - one) for one in (aurocs(scores, codes == k) for k in range(len(values)))
        ]
        best = torch.stack(separations).amax(dim=0)
        return cls(best, _chance(torch.bincount(codes)), shares_of_variance(scores, codes))


def _chance(counts: torch.Tensor) -> float:
    """Three standard errors above 0.5, of the value whose AUROC has the largest (Mann and Whitney 1947)."""
    others = counts.sum() - counts
    errors = ((counts.sum() + 1) / (12 * counts * others)).sqrt()
    return min(0.5 + 3 * float(errors.max()), 1.0)


def aurocs(scores: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """Area under the ROC curve of each column of scores [n, L] against bool [n], float64 [L].

    Ties count half; both classes need a row.
    """
    above = scores[positive].T.contiguous()
    below = scores[~positive].T.contiguous().sort().values
    n_lower, n_not_higher = torch.searchsorted(below, above), torch.searchsorted(below, above, right=True)
    return (n_lower + n_not_higher).double().mean(dim=1) / (2 * below.shape[1])


def shares_of_variance(scores: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Share of the variance of each column of scores [n, L] between the groups int64 [n], float64 [L].

    0 where the scores do not vary.
    """
    counts = torch.bincount(codes)
    sums = scores.new_zeros(len(counts), scores.shape[1]).index_add_(0, codes, scores)
    means = sums / counts.clamp(min=1)[:, None]
    centre = scores.mean(dim=0)
    between = (counts[:, None] * (means - centre).square()).sum(dim=0)
    total = (scores - centre).square().sum(dim=0)
    return torch.where(total > 0, between / total, 0.0).clamp(max=1)


def cosines(vectors: torch.Tensor) -> torch.Tensor:
    """Cosine of every two of n vectors [..., n, width], [..., n, n]."""
    units = torch.nn.functional.normalize(vectors, dim=-1)
    return torch.matmul(units, units.mT)
