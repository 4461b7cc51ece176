"""Scores of completions and answers, and their figures over prompts. Knows numbers and token ids alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from easysteer_data.steer_trial.result import Figure
from easysteer_data.vectors.figures import aurocs

Transform = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

_N_RESAMPLES = 1000
_INTERVAL = (0.025, 0.975)
_N_GRAM = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One prompt's share of a score that is a ratio of sums over prompts.

    Attributes:
        total: added up for the numerator.
        weight: added up for the denominator; 0 where the prompt has nothing to say.
    """

    total: float
    weight: float = 1.0


def answer_part(matching: float, other: float) -> Part:
    """Probability of the matching answer, from the log-probabilities of both, divided by their sum."""
    return Part(1 / (1 + math.exp(min(other - matching, 700.0))))


def perplexity_part(logprobs: Sequence[float]) -> Part:
    """Of a completion's tokens under the unsteered model; `pool` with `np.exp` makes it a perplexity."""
    return Part(-math.fsum(logprobs), len(logprobs))


def repetition_part(token_ids: Sequence[int]) -> Part:
    """3-grams of a completion that stood in it before, of all its 3-grams."""
    grams = [tuple(token_ids[i : i + _N_GRAM]) for i in range(len(token_ids) - _N_GRAM + 1)]
    return Part(len(grams) - len(set(grams)), len(grams))


def pool(parts: Sequence[Part], transform: Transform | None = None) -> Figure | None:
    """The ratio of the parts' sums, with the interval that resampling prompts gives; None without weight.

    The resamples are the same for all scores of as many prompts, so cells differ by what was steered alone.

    Args:
        parts: of each prompt.
        transform: of the ratio, element by element.
    """
    totals, weights = (
        np.array([(part.total, part.weight) for part in parts], dtype=np.float64).reshape(-1, 2).T
    )
    if weights.sum() <= 0:
        return None
    drawn = np.random.default_rng(0).integers(0, len(parts), (_N_RESAMPLES, len(parts)))
    sums = weights[drawn].sum(axis=1)
    ratios = totals[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    values = np.array([totals.sum() / weights.sum(), *np.quantile(ratios, _INTERVAL)])
    value, low, high = (values if transform is None else transform(values)).tolist()
    return Figure(value, low, high, int((weights > 0).sum()))


def separation(scores: Sequence[float], positive: Sequence[bool]) -> Figure:
    """Area under the ROC curve of the scores, with the interval that resampling prompts gives.

    Args:
        scores: of each prompt.
        positive: whether it is of the positive class; there are both.
    """
    all_scores, all_positive = torch.tensor(scores, dtype=torch.float64)[:, None], torch.tensor(positive)
    drawn = np.random.default_rng(0).integers(0, len(scores), (_N_RESAMPLES, len(scores)))
    both = [rows for rows in torch.from_numpy(drawn) if 0 < int(all_positive[rows].sum()) < len(scores)]
    found = [float(aurocs(all_scores[rows], all_positive[rows])) for rows in both]
    low, high = np.quantile(found, _INTERVAL).tolist()
    return Figure(float(aurocs(all_scores, all_positive)), low, high, len(scores))
