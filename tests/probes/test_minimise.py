"""The minimum of a logistic regression: scikit-learn's, run to convergence, and the gradient by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from easysteer_data.errors import SettingsError
from easysteer_data.probes.minimise import minimise

Array = npt.NDArray[np.float64]


def made(
    n_rows: int, width: int, n_classes: int, strength: float = 1.0
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Standardised rows whose spread falls by the square root of the axis, as residual streams' does."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n_rows)
    x = rng.normal(size=(n_rows, width)) * np.arange(1, width + 1) ** -0.5
    x += strength * rng.normal(size=(n_classes, width))[y] / width**0.5
    x = x @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    return (x - x.mean(axis=0)) / x.std(axis=0), y


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("n_rows", "width", "n_classes"),
    [(300, 12, 2), (60, 100, 2), (60, 100, 4), (400, 8, 3), (900, 20, 2)],
)
def test_it_is_scikit_learns(n_rows: int, width: int, n_classes: int, C: float) -> None:  # noqa: N803
    x, y = made(n_rows, width, n_classes)
    found = minimise(torch.from_numpy(x), torch.from_numpy(y), 1 if n_classes == 2 else n_classes, C)

    expected = LogisticRegression(C=C, tol=1e-9, max_iter=20_000).fit(x, y)
    size = np.abs(expected.coef_).max()
    np.testing.assert_allclose(found.weight, expected.coef_, atol=2e-3 * size)
    scores = x @ found.weight.numpy().T + found.bias.numpy()
    wanted = x @ expected.coef_.T + expected.intercept_
    if n_classes > 2:  # only differences of logits count
        scores, wanted = (s - s.mean(axis=1, keepdims=True) for s in (scores, wanted))
    np.testing.assert_allclose(scores, wanted, atol=5e-3 * np.abs(wanted).max())


def test_float32_rows_have_the_minimum_of_the_same_rows_in_float64() -> None:
    x, y = made(12_000, 40, 2, strength=0.3)
    rows = torch.from_numpy(x).float()
    found = minimise(rows, torch.from_numpy(y), 1, 1.0)

    x64 = rows.double().numpy()
    chances = 1 / (1 + np.exp(-(x64 @ found.weight[0].numpy() + float(found.bias))))
    gradient = x64.T @ (chances - y) / len(y) + found.weight[0].numpy() / len(y)
    curvature = (x64 * (chances * (1 - chances))[:, None]).T @ x64 / len(y) + np.eye(40) / len(y)
    # Half of Newton's decrement is the loss that is left to be lowered.
    assert gradient @ np.linalg.solve(curvature, gradient) / 2 < 3e-8
    assert abs((chances - y).mean()) < 1e-4
    expected = minimise(rows.double(), torch.from_numpy(y), 1, 1.0)
    assert found.loss == pytest.approx(expected.loss, abs=1e-7)
    assert found.n_passes <= 20


def test_a_feature_that_does_not_vary_gets_no_weight() -> None:
    x, y = made(500, 6, 2)
    x[:, 2] = 0
    found = minimise(torch.from_numpy(x), torch.from_numpy(y), 1, 1.0)
    assert abs(float(found.weight[0, 2])) < 1e-9


def test_classes_that_are_told_apart_entirely_have_a_minimum_through_the_penalty() -> None:
    x, y = made(200, 5, 2, strength=0)
    x[:, 0] = 10 * y
    found = minimise(torch.from_numpy(x), torch.from_numpy(y), 1, 1e4)
    expected = LogisticRegression(C=1e4, tol=1e-9, max_iter=20_000).fit(x, y)
    np.testing.assert_allclose(found.weight, expected.coef_, atol=0.02 * np.abs(expected.coef_).max())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_no_numbers_have_no_minimum(value: Any) -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    x[4, 1] = value
    with pytest.raises(SettingsError, match="no minimum found"):
        minimise(x, torch.arange(30) % 2, 1, 1.0)
