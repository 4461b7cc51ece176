"""Figures against scikit-learn's and torchmetrics', intervals against a plain loop over draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    roc_curve,
)
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from easysteer_data.errors import SettingsError
from easysteer_data.probes.bootstrap import Bootstrap
from easysteer_data.probes.figures import ClassScores, class_figures, number_figures
from easysteer_data.probes.ranking import roc_points

NONE = Bootstrap(n=0)


def made(n_classes: int, n: int = 240) -> tuple[ClassScores, torch.Tensor]:
    """Scores with ties, and groups of several examples."""
    rng = np.random.default_rng(n_classes)
    y = rng.integers(0, n_classes, n)
    scores = np.round(rng.normal(size=(n, n_classes)) + np.eye(n_classes)[y], 1)
    tensor = torch.from_numpy(scores)
    examples = ClassScores(tensor, tensor.softmax(dim=1), torch.from_numpy(y))
    return examples, torch.from_numpy(rng.integers(0, 60, n))


def by_scikit_learn(examples: ClassScores, chosen: np.ndarray) -> dict[str, float]:
    """The same figures of some examples, drawn once or several times."""
    y, p = examples.target.numpy()[chosen], examples.chances.numpy()[chosen]
    two = p.shape[1] == 2
    one_hot = np.eye(p.shape[1])[y]
    scores = examples.scores.numpy()[chosen]
    ranked = (scores[:, 1] - scores[:, 0])[:, None] if two else p
    sides = one_hot[:, 1:] if two else one_hot
    calibration = (
        binary_calibration_error(torch.from_numpy(p[:, 1].copy()), torch.from_numpy(y), n_bins=10)
        if two
        else multiclass_calibration_error(
            torch.from_numpy(p), torch.from_numpy(y), num_classes=p.shape[1], n_bins=10
        )
    )
    columns = range(sides.shape[1])
    return {
        "accuracy": accuracy_score(y, p.argmax(axis=1)),
        "auroc": float(np.mean([roc_auc_score(sides[:, k], ranked[:, k]) for k in columns])),
        "average_precision": float(
            np.mean([average_precision_score(sides[:, k], ranked[:, k]) for k in columns])
        ),
        "ece": float(calibration),
        "brier": brier_score_loss(y, p[:, 1]) if two else float(np.square(p - one_hot).sum(axis=1).mean()),
    }


@pytest.mark.parametrize("n_classes", [2, 4])
def test_figures_of_classes_are_scikit_learns(n_classes: int) -> None:
    examples, groups = made(n_classes)
    found = class_figures(examples, groups, NONE, n_bins=10)
    expected = by_scikit_learn(examples, np.arange(len(groups)))
    assert found.keys() == expected.keys()
    for name, figure in found.items():
        assert figure.value == pytest.approx(expected[name], abs=1e-6), name
        assert (figure.low, figure.high) == (None, None)


def test_the_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    # Two bins: four examples at 0.2 of which one is of class 1, and two at 0.9 of which both are.
    p = torch.tensor([0.2, 0.2, 0.2, 0.2, 0.9, 0.9], dtype=torch.float64)
    chances = torch.stack([1 - p, p], dim=1)
    examples = ClassScores(chances.log(), chances, torch.tensor([0, 0, 0, 1, 1, 1]))
    found = class_figures(examples, torch.arange(6), NONE, n_bins=2)
    assert found["ece"].value == pytest.approx(4 / 6 * abs(0.25 - 0.2) + 2 / 6 * (1 - 0.9))


def test_scores_too_sure_for_float64_chances_are_still_ranked() -> None:
    scores = torch.tensor([[0.0, 50.0], [0.0, 60.0], [0.0, 55.0], [0.0, 40.0]], dtype=torch.float64)
    examples = ClassScores(scores, scores.softmax(dim=1), torch.tensor([0, 1, 1, 0]))
    assert class_figures(examples, torch.arange(4), NONE, 10)["auroc"].value == 1.0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_intervals_are_those_of_a_plain_loop_over_draws_of_groups(n_classes: int) -> None:
    examples, groups = made(n_classes, n=90)
    bootstrap = Bootstrap(n=40, interval=0.8, seed=3)
    found = class_figures(examples, groups, bootstrap, n_bins=10)

    draws = [weights for chunk in bootstrap.weights(groups) for weights in chunk.long().numpy()]
    assert (draws[0] == 1).all()
    assert len(draws) == 41
    rows = [by_scikit_learn(examples, np.repeat(np.arange(90), weights)) for weights in draws[1:]]
    for name, figure in found.items():
        low, high = np.quantile([row[name] for row in rows], [0.1, 0.9])
        assert (figure.low, figure.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_a_draw_takes_as_many_groups_as_there_are_and_each_as_a_whole() -> None:
    groups = torch.tensor([7, 7, 7, 2, 2, 9])
    chunks = list(Bootstrap(n=200, seed=1).weights(groups))
    draws = torch.cat(chunks[1:])
    assert torch.equal(draws[:, :2], draws[:, 1:3])
    assert torch.equal(draws[:, 3], draws[:, 4])
    assert set((draws[:, 0] + draws[:, 3] + draws[:, 5]).tolist()) == {3.0}
    assert draws.mean(dim=0).sub(1).abs().max() < 0.25
    assert torch.equal(draws, torch.cat(list(Bootstrap(n=200, seed=1).weights(groups))[1:]))


def test_figures_of_numbers_are_scikit_learns_and_scipys_also_in_draws() -> None:
    rng = np.random.default_rng(0)
    y = np.round(rng.normal(1000, 5, 120), 0)
    p = np.round(y + rng.normal(0, 4, 120), 0)
    groups = torch.from_numpy(np.arange(120) // 3)
    bootstrap = Bootstrap(n=30, interval=0.9)
    found = number_figures(torch.from_numpy(p), torch.from_numpy(y), groups, bootstrap)

    def figures(chosen: np.ndarray) -> dict[str, float]:
        a, b = p[chosen], y[chosen]
        return {
            "r2": r2_score(b, a),
            "mae": mean_absolute_error(b, a),
            "pearson": float(pearsonr(a, b).statistic),
            "spearman": float(spearmanr(a, b).statistic),
        }

    draws = [weights for chunk in bootstrap.weights(groups) for weights in chunk.long().numpy()]
    rows = [figures(np.repeat(np.arange(120), weights)) for weights in draws]
    for name, figure in found.items():
        assert figure.value == pytest.approx(rows[0][name], abs=1e-6), name
        low, high = np.quantile([row[name] for row in rows[1:]], [0.05, 0.95])
        assert (figure.low, figure.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_a_correlation_with_a_constant_is_undefined() -> None:
    found = number_figures(torch.zeros(5), torch.arange(5.0), torch.arange(5), Bootstrap(n=10))
    assert found["pearson"].value is None
    assert found["spearman"].low is None
    assert found["mae"].value == 2.0


def test_the_points_of_the_roc_curve_are_scikit_learns() -> None:
    examples, _ = made(2)
    ranked, positive = examples.one_against_rest(1)
    false, true = roc_points(ranked, positive, max_points=10_000)
    expected_false, expected_true, _ = roc_curve(positive.numpy(), ranked.numpy(), drop_intermediate=False)
    np.testing.assert_allclose(false, expected_false)
    np.testing.assert_allclose(true, expected_true)
    few, _ = roc_points(ranked, positive, max_points=7)
    assert (len(few), float(few[0]), float(few[-1])) == (7, 0.0, 1.0)


@pytest.mark.parametrize("settings", [{"n": -1}, {"interval": 0.0}, {"interval": 1.0}])
def test_a_bootstrap_out_of_range_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=r"probe\.bootstrap must be at least 0"):
        Bootstrap(**settings)  # type: ignore[arg-type]
