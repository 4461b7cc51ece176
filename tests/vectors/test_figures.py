from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_selection import f_classif
from sklearn.metrics import roc_auc_score

from easysteer_data.vectors.contrast import LabelledRows
from easysteer_data.vectors.figures import SplitFigures, aurocs, cosines, measure, shares_of_variance


@pytest.fixture
def rows() -> LabelledRows:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3, 5)).round(1)
    positive = rng.random(90) < 0.4
    x[positive, 1, 0] += 1
    confound = rng.integers(-1, 3, 90)
    x[confound == 2, 2, 1] += 4
    return LabelledRows(*(torch.from_numpy(a) for a in (x, positive, np.arange(90) // 3, confound)))


@pytest.fixture
def directions() -> torch.Tensor:
    return torch.tensor([[0, 2.0, 0, 0, 0], [3, 0, 0, 0, 0], [0, 1, 0, 0, 0]], dtype=torch.float64)


def test_auroc_equals_scikit_learns_with_ties(rows: LabelledRows) -> None:
    scores = rows.x[:, :, 0]
    assert len(scores[:, 0].unique()) < len(scores)
    expected = [roc_auc_score(rows.positive.numpy(), scores[:, layer].numpy()) for layer in range(3)]
    assert aurocs(scores, rows.positive).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_share_of_variance_between_groups_equals_that_of_scikit_learns_f_test(rows: LabelledRows) -> None:
    codes = rows.confound + 1
    f, _ = f_classif(rows.x[:, 0].numpy(), codes.numpy())
    odds = f * 3 / (90 - 4)  # explained against unexplained, for 4 groups
    found = shares_of_variance(rows.x[:, 0], codes)
    np.testing.assert_allclose(found.numpy(), odds / (1 + odds), rtol=1e-9)
    assert shares_of_variance(torch.ones(4, 1).double(), torch.tensor([0, 0, 1, 1])).tolist() == [0]


def test_a_direction_is_measured_by_its_projections_whatever_its_length(
    rows: LabelledRows, directions: torch.Tensor
) -> None:
    figures = measure(rows, directions)
    assert figures == measure(rows, directions / directions.norm(dim=-1, keepdim=True))
    scores = [rows.x[:, 0, 1].numpy(), rows.x[:, 1, 0].numpy(), rows.x[:, 2, 1].numpy()]
    positive, confound = rows.positive.numpy(), rows.confound.numpy()
    for found, score in zip(figures, scores, strict=True):
        assert found.auroc == pytest.approx(roc_auc_score(positive, score))
        known = confound >= 0
        each = [roc_auc_score(confound[known] == code, score[known]) for code in range(3)]
        assert found.confound_auroc == pytest.approx(max(max(one, 1 - one) for one in each))
        right = []
        for group in range(30):
            own = positive[3 * group : 3 * group + 3]
            if own.any() and not own.all():
                mean = score[3 * group : 3 * group + 3]
                above, below = mean[own].mean(), mean[~own].mean()
                right.append(0.5 if above == pytest.approx(below, abs=1e-12) else float(above > below))
        assert found.n_pairs == len(right)
        assert found.pair_accuracy == pytest.approx(np.mean(right))


def test_pairs_are_measured_with_and_without_the_confounds_part() -> None:
    rng = np.random.default_rng(1)
    n_pairs = 200
    positive = np.arange(2 * n_pairs) % 2 == 1
    has_a = np.repeat(rng.random(n_pairs) < 0.3, 2) == positive  # of three pairs in ten the positive side
    own = rng.normal(size=2 * n_pairs) + positive
    for letter, share in ((50.0, "a"), (-50.0, "b")):
        x = (own + letter * has_a).reshape(-1, 1, 1)
        group = np.arange(2 * n_pairs) // 2
        rows = LabelledRows(*(torch.from_numpy(a) for a in (x, positive, group, has_a.astype(np.int64))))
        (found,) = measure(rows, torch.ones(1, 1).double())
        with_a = has_a[positive].mean()
        expected = with_a if share == "a" else 1 - with_a
        assert found.pair_accuracy == found.confound_pair_accuracy == pytest.approx(expected)
        # Of each letter's rows, the classes' means are brought to the same middle.
        free = own.copy()
        for value in (True, False):
            alike = has_a == value
            free[alike] -= (own[alike & positive].mean() + own[alike & ~positive].mean()) / 2
        assert found.free_pair_accuracy == pytest.approx((free[1::2] > free[::2]).mean())
        assert found.free_auroc == pytest.approx(roc_auc_score(positive, free))


def test_a_direction_that_tells_the_confound_better_is_flagged(
    rows: LabelledRows, directions: torch.Tensor
) -> None:
    _, class_axis, confound_axis = measure(rows, directions)
    assert not class_axis.is_confounded
    assert confound_axis.is_confounded
    # Of values drawn anew, no more than one in hundreds is told apart better than by chance.
    rng = np.random.default_rng(2)
    codes = torch.from_numpy(np.arange(90) % 2)
    found = [
        measure(
            LabelledRows(torch.from_numpy(rng.normal(size=(90, 1, 1))), rows.positive, codes, codes),
            torch.ones(1, 1).double(),
        )[0]
        for _ in range(300)
    ]
    assert sum(one.confound_auroc > one.auroc for one in found) > 100  # type: ignore[operator]
    assert sum(one.is_confounded for one in found) <= 3
    assert confound_axis.confound_variance is not None
    assert confound_axis.confound_variance > 0.5 > confound_axis.label_variance


def test_what_can_not_be_measured_is_none(rows: LabelledRows, directions: torch.Tensor) -> None:
    bare = LabelledRows(rows.x, rows.positive, torch.full((90,), -1), torch.zeros(90, dtype=torch.int64))
    for found in measure(bare, directions):
        assert (found.pair_accuracy, found.n_pairs) == (None, 0)
        assert (found.confound_auroc, found.confound_chance, found.confound_variance) == (None, None, None)
        assert (found.confound_pair_accuracy, found.free_pair_accuracy) == (None, None)
        assert found.free_auroc == found.auroc
        assert not found.is_confounded


def test_a_tie_within_a_pair_counts_half() -> None:
    x = torch.tensor([1.0, 1, 2, 1, 1, 2]).double().view(6, 1, 1)
    positive = torch.tensor([True, False] * 3)
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    (found,) = measure(LabelledRows(x, positive, group, group), torch.ones(1, 1).double())
    assert isinstance(found, SplitFigures)
    assert found.pair_accuracy == pytest.approx((0.5 + 1 + 0) / 3)


def test_cosines_equal_numpys() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 7))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(torch.from_numpy(vectors)).numpy(), units @ units.T, atol=1e-12)
