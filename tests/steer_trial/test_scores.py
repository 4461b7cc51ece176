from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from easysteer_data.steer_trial.scores import (
    Part,
    answer_part,
    perplexity_part,
    pool,
    repetition_part,
    separation,
)


@settings(deadline=None)
@given(st.floats(-80, 0), st.floats(-80, 0))
def test_the_matching_answer_s_probability_is_a_softmax_over_both(matching: float, other: float) -> None:
    expected = torch.tensor([matching, other], dtype=torch.float64).softmax(dim=0)[0]
    assert answer_part(matching, other) == Part(pytest.approx(float(expected), abs=1e-12))


def test_an_impossible_answer_has_probability_0_and_leaves_1_to_the_other() -> None:
    assert answer_part(-math.inf, -1.0).total < 1e-300
    assert answer_part(-1.0, -math.inf).total == 1.0


def test_pooled_perplexity_is_that_of_all_tokens_together() -> None:
    # A model that gives each of four tokens 1/4, and each of two tokens 1/8.
    parts = [perplexity_part([math.log(1 / 4)] * 4), perplexity_part([math.log(1 / 8)] * 2)]
    figure = pool(parts, np.exp)
    assert figure is not None
    assert figure.value == pytest.approx((4**4 * 8**2) ** (1 / 6))
    assert (figure.low, figure.high) == (pytest.approx(4), pytest.approx(8))


def test_repeated_3_grams_are_counted_from_their_second_time_on() -> None:
    assert repetition_part([1, 2, 3, 1, 2, 3, 1, 2, 3]) == Part(4, 7)  # 123 231 312 are new, four are not
    assert repetition_part([1, 1, 1, 1]) == Part(1, 2)
    assert repetition_part([1, 2]) == Part(0, 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_repetition_is_what_counting_each_3_gram_gives(token_ids: list[int]) -> None:
    counts = Counter(zip(token_ids, token_ids[1:], token_ids[2:], strict=False))
    assert repetition_part(token_ids) == Part(sum(n - 1 for n in counts.values()), counts.total())


def test_a_figure_s_interval_is_that_of_the_mean_over_prompts() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    figure = pool([Part(float(value)) for value in values])
    assert figure is not None
    standard_error = values.std() / 20
    assert figure.value == pytest.approx(values.mean())
    assert figure.low == pytest.approx(values.mean() - 1.96 * standard_error, abs=0.2 * standard_error)
    assert figure.high == pytest.approx(values.mean() + 1.96 * standard_error, abs=0.2 * standard_error)
    assert figure.n == 400


def test_prompts_without_weight_are_not_counted_and_all_of_them_make_no_figure() -> None:
    figure = pool([Part(0, 0), Part(3, 4), Part(0, 0)])
    assert figure is not None
    assert (figure.value, figure.n) == (0.75, 1)
    assert pool([Part(0, 0), Part(0, 0)]) is None


def test_separation_is_scikit_learn_s_auroc_within_its_interval() -> None:
    rng = np.random.default_rng(2)
    positive = rng.random(300) < 0.4
    scores = np.round(rng.normal(size=300) + positive, 1)  # with ties
    figure = separation(scores.tolist(), positive.tolist())
    assert figure.value == pytest.approx(roc_auc_score(positive, scores))
    # Hanley and McNeil's standard error of such an area is about 0.026.
    assert figure.low == pytest.approx(figure.value - 0.05, abs=0.02)
    assert figure.high == pytest.approx(figure.value + 0.05, abs=0.02)


def test_classes_that_do_not_overlap_are_told_apart_wholly() -> None:
    figure = separation([1.0, 2.0, 3.0, 4.0], [False, False, True, True])
    assert (figure.value, figure.low, figure.high) == (1.0, 1.0, 1.0)
