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
        confound_variance: share of the variance that lies between the confound's values; None as above.
    """

    auroc: float
    pair_accuracy: float | None
    n_pairs: int
    label_variance: float
    confound_auroc: float | None
    confound_variance: float | None

    @property
    def is_confounded(self) -> bool:
        """Whether the direction separates the confound better than the classes."""
        return self.confound_auroc is not None and self.confound_auroc > self.auroc


def measure(rows: LabelledRows, directions: torch.Tensor) -> list[SplitFigures]:
    """Figures of each layer; the rows must be of both classes.

    Args:
        rows: a split's rows, of L layers.
        directions: float64 [L, width], of any length above 0.
    """
    units = directions / directions.norm(dim=-1, keepdim=True)
    scores = torch.einsum("nlw,lw->nl", rows.x, units)
    above, below = rows.pairs(scores)
    paired = ((above > below).double() + (above == below).double() / 2).mean(dim=0)  # NaN without pairs
    auroc, label_variance = aurocs(scores, rows.positive), shares_of_variance(scores, rows.positive.long())
    confound = _Confound.of(rows, scores)
    return [
        SplitFigures(
            auroc=float(auroc[layer]),
            pair_accuracy=float(paired[layer]) if len(above) else None,
            n_pairs=len(above),
            label_variance=float(label_variance[layer]),
            confound_auroc=None if confound is None else float(confound.auroc[layer]),
            confound_variance=None if confound is None else float(confound.variance[layer]),
        )
        for layer in range(len(units))
    ]


@dataclass(frozen=True, slots=True)
class _Confound:
    """Of each layer, float64 [L]: see SplitFigures."""

    auroc: torch.Tensor
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
        return cls(torch.stack(separations).amax(dim=0), shares_of_variance(scores, codes))


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
