"""Puts a trial's report together from what each point of the grid came to. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from easysteer_data.steer_trial.grid import BASELINE, SCALE_UNITS, Point
from easysteer_data.steer_trial.plan import TrialPlan
from easysteer_data.steer_trial.result import (
    Cell,
    Curve,
    Figure,
    Limits,
    Sample,
    SampleText,
    ScoreInfo,
    SteerReport,
)
from easysteer_data.steer_trial.scores import Part, pool
from easysteer_data.steer_trial.usable_range import rising_range, usable_range

Figures = Mapping[Point, Mapping[str, Figure]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a point of the grid came to.

    Attributes:
        parts: score's name -> each prompt's or question's part of it.
        texts: each prompt's completion.
        separation: how well the labelled prompts are told apart, None where there are none.
    """

    parts: Mapping[str, Sequence[Part]]
    texts: Sequence[str]
    separation: Figure | None = None


def assemble(plan: TrialPlan, found: Mapping[Point, Found]) -> SteerReport:
    """The report of a trial; `found` has every point of the plan's grid."""
    figures = {point: _figures(one) for point, one in found.items()}
    origin, settings = plan.vector.provenance, plan.settings.steer
    limits = Limits(settings.limits.perplexity_ratio, settings.limits.repetition)
    return SteerReport(
        model=plan.facts.name,
        data_set=origin.data_set,
        estimator=origin.estimator,
        sign=origin.sign,
        algorithm=settings.algorithm,
        scale_unit=SCALE_UNITS[settings.algorithm],
        prompts=plan.material.origin,
        target=plan.target,
        limits=limits,
        scores=tuple(score for score in _scores(plan) if score.name in figures[BASELINE]),
        curves=tuple(_curve(plan, layers, figures, limits) for layers in plan.grid.layer_sets),
        samples=_samples(plan, found),
    )


def _figures(found: Found) -> dict[str, Figure]:
    figures = {
        name: pool(own, np.exp if name == "perplexity" else None) for name, own in found.parts.items()
    } | {"separation": found.separation}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _scores(plan: TrialPlan) -> tuple[ScoreInfo, ...]:
    return (
        ScoreInfo(
            "answer",
            "p(matching answer)",
            "probability of the matching answer, of the two answers' first different tokens",
        ),
        ScoreInfo("probe", plan.reading.title, plan.reading.meaning),
        ScoreInfo(
            "separation",
            "AUROC of labelled prompts",
            "AUROC of the same reading on labelled held-out prompts whose rows are captured under steering",
        ),
        ScoreInfo(
            "perplexity", "perplexity", "perplexity of the completions under the model without steering"
        ),
        ScoreInfo(
            "repetition",
            "repeated 3-grams",
            "share of a completion's 3-grams of tokens that stood in it before",
        ),
        ScoreInfo("length", "tokens", "mean length of a completion in tokens"),
    )


def _curve(plan: TrialPlan, layers: tuple[int, ...], figures: Figures, limits: Limits) -> Curve:
    cells = tuple(
        Cell(scale, figures[Point(layers, scale) if scale else BASELINE]) for scale in plan.grid.scales
    )
    # What is erased has no side to rise to.
    rises = plan.target if plan.settings.steer.algorithm == "direct" else None
    return Curve(layers, cells, rising_range(cells, plan.target), usable_range(cells, rises, limits))


def _samples(plan: TrialPlan, found: Mapping[Point, Found]) -> tuple[Sample, ...]:
    prompts = plan.material.prompts[: plan.settings.steer.prompts.n_samples]
    return tuple(
        Sample(
            prompt.id,
            prompt.text,
            tuple(
                SampleText(point.layers, point.scale, found[point].texts[number])
                for point in plan.grid.points
            ),
        )
        for number, prompt in enumerate(prompts)
    )
