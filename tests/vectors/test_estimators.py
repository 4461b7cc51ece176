from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.vectors import ESTIMATORS, make_estimators
from easysteer_data.vectors.estimators import (
    BalancedDifferenceOfMeans,
    DifferenceOfMeans,
    LogisticDirection,
    PairedPCA,
    RandomPairPCA,
    WhitenedDifference,
)
from tests.vectors.made import Floats, arrays, contrast_of, random_contrast

# More rows than elements, and fewer.
SHAPES = [(60, 10), (16, 25)]


def assert_along(found: torch.Tensor, axes: Floats, difference: Floats, tolerance: float = 1e-5) -> None:
    """The vectors lie on the axes, towards the positive class, as long as the means are apart there."""
    units = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    expected = units * (units * difference).sum(axis=-1, keepdims=True)
    scale = np.linalg.norm(expected, axis=-1).min()
    np.testing.assert_allclose(found.numpy(), expected, atol=tolerance * scale, rtol=0)
    assert ((found.numpy() * difference).sum(axis=-1) > 0).all()


def difference_of(x: Floats, positive: np.ndarray) -> Floats:
    difference: Floats = x[positive].mean(axis=0) - x[~positive].mean(axis=0)
    return difference


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_difference_of_means_equals_numpy(n_rows: int, width: int) -> None:
    contrast = random_contrast(n_rows, width=width)
    found = DifferenceOfMeans()(contrast)
    np.testing.assert_allclose(found.numpy(), difference_of(*arrays(contrast)), atol=1e-12)


def test_the_balanced_difference_is_the_mean_of_the_differences_within_each_value() -> None:
    contrast = random_contrast(60)
    (x, positive), codes = arrays(contrast), contrast.rows.confound.numpy()
    within = [difference_of(x[codes == code], positive[codes == code]) for code in (0, 1)]
    found = BalancedDifferenceOfMeans(orthogonal=False)(contrast)
    np.testing.assert_allclose(found.numpy(), np.mean(within, axis=0), atol=1e-12)


@pytest.mark.parametrize("n_values", [2, 3])
def test_the_orthogonal_one_is_what_the_steps_between_the_values_do_not_explain(n_values: int) -> None:
    contrast = random_contrast(60)
    x, positive = arrays(contrast)
    codes = np.arange(60) // 2 % n_values
    balanced = contrast_of(x, positive, contrast.rows.group.numpy(), codes)
    sides = np.array(
        [[x[(codes == k) & (positive == side)].mean(axis=0) for side in (0, 1)] for k in range(n_values)]
    )
    difference, centres = (sides[:, 1] - sides[:, 0]).mean(axis=0), sides.mean(axis=1)
    found = BalancedDifferenceOfMeans()(balanced)
    for layer in range(x.shape[1]):
        steps = (centres[1:, layer] - centres[:1, layer]).T
        explained = steps @ np.linalg.lstsq(steps, difference[layer], rcond=None)[0]
        np.testing.assert_allclose(found[layer].numpy(), difference[layer] - explained, atol=1e-8)


def test_without_a_step_between_the_values_there_is_nothing_to_leave_out() -> None:
    contrast = random_contrast(40)
    x, positive = arrays(contrast)
    codes = np.repeat([0, 1], 40)
    twice = contrast_of(np.tile(x, (2, 1, 1)), np.tile(positive, 2), np.arange(80) // 2, codes)
    np.testing.assert_allclose(
        BalancedDifferenceOfMeans()(twice).numpy(), difference_of(x, positive), atol=1e-12
    )


def test_the_balanced_difference_is_free_of_a_confound_that_goes_with_a_class() -> None:
    rng = np.random.default_rng(0)
    positive = np.arange(400) % 2 == 1
    is_a = np.where(rng.random(400) < 0.8, positive, ~positive)
    x = rng.normal(size=(400, 1, 6)) * 0.1
    x[:, 0, 0] += positive
    x[:, 0, 1] += 10 * is_a
    contrast = contrast_of(x, positive, np.arange(400), is_a.astype(np.int64))
    plain, balanced = DifferenceOfMeans()(contrast)[0], BalancedDifferenceOfMeans()(contrast)[0]
    assert plain[1] > 5 * plain[0]
    assert abs(float(balanced[1])) < 0.05 < 0.9 < float(balanced[0])


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_paired_pca_equals_scikit_learns_of_differences_of_either_sign(n_rows: int, width: int) -> None:
    contrast = random_contrast(n_rows, width=width)
    x, positive = arrays(contrast)
    axes = []
    for layer in range(x.shape[1]):
        differences = x[1::2, layer] - x[::2, layer]
        axes.append(PCA(n_components=1).fit(np.vstack([differences, -differences])).components_[0])
    assert_along(PairedPCA()(contrast), np.array(axes), difference_of(x, positive))


@pytest.mark.parametrize("seed", [0, 7])
def test_lat_equals_scikit_learns_pca_of_random_pairs(seed: int) -> None:
    contrast = random_contrast(61)
    x, positive = arrays(contrast)
    order = torch.randperm(61, generator=torch.Generator().manual_seed(seed)).numpy()[:60]
    axes = []
    for layer in range(x.shape[1]):
        differences = x[order[::2], layer] - x[order[1::2], layer]
        axes.append(PCA(n_components=1).fit(np.vstack([differences, -differences])).components_[0])
    assert_along(RandomPairPCA(seed)(contrast), np.array(axes), difference_of(x, positive))


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_mass_mean_equals_the_difference_whitened_by_scikit_learns_covariance(
    n_rows: int, width: int
) -> None:
    contrast = random_contrast(n_rows, width=width)
    x, positive = arrays(contrast)
    axes = np.zeros(x.shape[1:])
    for layer in range(x.shape[1]):
        rows = x[:, layer]
        within = np.where(positive[:, None], rows - rows[positive].mean(0), rows - rows[~positive].mean(0))
        varying = slice(1, None)  # element 0 is constant
        std = within[:, varying].std(axis=0)
        standardised = within / np.concatenate([[1.0], std])
        covariance = LedoitWolf(assume_centered=True).fit(standardised).covariance_[varying, varying]
        difference = difference_of(rows, positive)[varying]
        axes[layer, varying] = np.linalg.solve(covariance, difference / std) / std
    assert_along(WhitenedDifference()(contrast), axes, difference_of(x, positive))


@pytest.mark.parametrize("C", [1.0, 0.01, 100.0])
@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_the_logistic_direction_equals_scikit_learns(n_rows: int, width: int, C: float) -> None:  # noqa: N803
    contrast = random_contrast(n_rows, width=width)
    x, positive = arrays(contrast)
    axes = []
    for layer in range(x.shape[1]):
        std = np.where(x[:, layer].std(axis=0) > 1e-9, x[:, layer].std(axis=0), 1)
        model = LogisticRegression(C=C, tol=1e-10, max_iter=100_000)
        axes.append(model.fit((x[:, layer] - x[:, layer].mean(axis=0)) / std, positive).coef_[0] / std)
    assert_along(LogisticDirection(C)(contrast), np.array(axes), difference_of(x, positive))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_swapping_the_classes_turns_every_direction_round(name: str) -> None:
    contrast = random_contrast(60)
    x, positive = arrays(contrast)
    rows = contrast.rows
    swapped = contrast_of(x, ~positive, rows.group.numpy(), rows.confound.numpy())
    (estimator,) = make_estimators([name]).values()
    torch.testing.assert_close(estimator(swapped), -estimator(contrast), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_layer_alone_has_the_vector_that_it_has_among_others(name: str) -> None:
    contrast = random_contrast(40, n_layers=3)
    x, positive = arrays(contrast)
    rows = contrast.rows
    alone = contrast_of(x[:, 1:2].copy(), positive, rows.group.numpy(), rows.confound.numpy())
    (estimator,) = make_estimators([name]).values()
    torch.testing.assert_close(estimator(alone)[0], estimator(contrast)[1], rtol=1e-9, atol=1e-9)


def test_groups_of_several_rows_are_paired_by_their_means_and_one_sided_ones_left_out() -> None:
    x = np.arange(7, dtype=np.float64)[:, None, None] ** 2
    positive = np.array([True, False, False, True, True, False, True])
    group = np.array([0, 0, 0, 1, -1, -1, 2])
    rows = contrast_of(x, positive, group, group).rows
    above, below = rows.pairs(rows.x)
    assert above.flatten().tolist() == [0.0]
    assert below.flatten().tolist() == [(1 + 4) / 2]


def test_estimators_say_what_they_lack() -> None:
    x, positive = arrays(random_contrast(20))
    none = np.full(20, -1)
    bare = contrast_of(x, positive, none, none)
    with pytest.raises(RunError, match="no group of the train split has rows of both classes"):
        PairedPCA()(bare)
    with pytest.raises(RunError, match="no value of the confound field has rows of both classes"):
        BalancedDifferenceOfMeans()(bare)
    two = contrast_of(x[:2], positive[:2], none[:2], none[:2])
    with pytest.raises(RunError, match="mass_mean needs rows of a class that differ"):
        WhitenedDifference()(two)


def test_rows_that_mirror_each_other_can_be_whitened() -> None:
    x = np.array([[[1.0, 2, 0]], [[3, 4, 0]], [[2, 5, 0]], [[4, 7, 0]]])
    axis = WhitenedDifference()(contrast_of(x, np.array([False, False, True, True]), *[np.arange(4)] * 2))
    assert axis.isfinite().all()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["pca"], "there is no 'pca'; there are diff_means, diff_means_balanced, paired_pca"),
        ([], "name one, or several different ones"),
        (["lat", "lat"], "name one, or several different ones"),
    ],
)
def test_estimators_that_can_not_be_made_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_estimators(names)


def test_a_penalty_that_can_not_be_used_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"vector\.C is 0; use a number above 0"):
        make_estimators(["logistic"], C=0)
