from __future__ import annotations

import pytest

from easysteer_data.steer_trial.result import Cell, Figure, Limits, ScaleRange
from easysteer_data.steer_trial.usable_range import rising_range, usable_range

LIMITS = Limits(perplexity_ratio=2.0, repetition=0.5)


def figure(value: float) -> Figure:
    return Figure(value, value, value, 1)


def cells(*given: tuple[float, float, float, float]) -> list[Cell]:
    """Of (scale, target, perplexity, repetition)."""
    return [
        Cell(scale, {"probe": figure(target), "perplexity": figure(ppl), "repetition": figure(repeated)})
        for scale, target, ppl, repeated in given
    ]


def test_scales_rise_until_the_score_turns_on_either_side_of_0() -> None:
    curve = cells(
        (-4, 0, 1, 0), (-2, -3, 1, 0), (-1, -2, 1, 0), (0, 0, 1, 0), (1, 1, 1, 0), (2, 1, 1, 0), (4, 9, 1, 0)
    )
    assert rising_range(curve, "probe") == ScaleRange(-2, 1, 4)
    assert usable_range(curve, "probe", LIMITS) == ScaleRange(-2, 1, 4)


def test_a_scale_beyond_one_that_breaks_a_limit_is_not_usable() -> None:
    curve = cells((-1, -1, 20, 0), (0, 0, 10, 0.1), (1, 1, 20, 0.5), (2, 2, 20.1, 0), (3, 3, 10, 0))
    assert usable_range(curve, "probe", LIMITS) == ScaleRange(-1, 1, 3)
    repeating = cells((0, 0, 10, 0.6), (1, 1, 10, 0.51), (2, 2, 10, 0.2))
    assert usable_range(repeating, "probe", LIMITS) == ScaleRange(0, 0, 1)
    assert rising_range(repeating, "probe") == ScaleRange(0, 2, 3)


def test_without_a_target_only_the_limits_count() -> None:
    curve = cells((0, 5, 10, 0), (0.5, 4, 12, 0), (1, 4, 30, 0))
    assert usable_range(curve, None, LIMITS) == ScaleRange(0, 0.5, 2)


@pytest.mark.parametrize(("scale", "within"), [(-2, True), (0.3, True), (1, True), (1.5, False), (-3, False)])
def test_a_range_holds_what_lies_between_its_ends(scale: float, within: bool) -> None:
    assert (scale in ScaleRange(-2, 1, 4)) is within


def test_completions_too_short_for_3_grams_set_no_limit() -> None:
    curve = [Cell(s, {"answer": figure(s), "perplexity": figure(3)}) for s in (0.0, 1.0)]
    assert usable_range(curve, "answer", LIMITS) == ScaleRange(0, 1, 2)
