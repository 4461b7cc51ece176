"""Ridge, LDA and mass-mean probes against scikit-learn's on the same standardised rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge, RidgeClassifier

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes import LDAProbe, ProbeData, RidgeProbe, Training, make_probe
from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.settings import ProbeSettings
from tests.runs import MadeRows, labelled_rows, write_run


def fitted(folder: Path, rows: MadeRows, **settings: Any) -> tuple[Any, ProbeData]:
    data = ProbeData(ActivationDataModule(write_run(folder / "run", rows), batch_size=37))
    probe = make_probe(data, ProbeSettings(**settings))
    probe.fit(data, Training())
    return probe, data


def standardised(rows: MadeRows, layer: int) -> np.ndarray:
    x = rows.x[:, layer].astype(np.float64)
    train = x[rows.rows_of("train")]
    std = train.std(axis=0)
    return (x - train.mean(axis=0)) / np.where(std == 0, 1, std)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_ridge_is_scikit_learns_ridge_classifier(tmp_path: Path, n_classes: int) -> None:
    rows = labelled_rows((0.7, 3.0), n_classes=n_classes)
    probe, _ = fitted(tmp_path, rows, kind="ridge", alpha=2.5)
    scores = probe.score(torch.from_numpy(rows.x))
    train = rows.rows_of("train")
    for layer in range(2):
        x = standardised(rows, layer)
        expected = RidgeClassifier(alpha=2.5).fit(x[train], rows.y[train]).decision_function(x)
        found = scores[:, layer, 1] if n_classes == 2 else scores[:, layer]
        np.testing.assert_allclose(found, expected, atol=1e-9)
    chances = probe.chances(scores)
    torch.testing.assert_close(chances.sum(dim=-1), torch.ones(scores.shape[:2]).double())
    if n_classes == 2:
        inside = scores[..., 1].abs() < 1
        torch.testing.assert_close(chances[..., 1][inside], (1 + scores[..., 1][inside]) / 2)


def test_ridge_of_numbers_is_scikit_learns_ridge(tmp_path: Path) -> None:
    rows = labelled_rows((3.0, 1.0))
    numbers = [float(1000 + 3 * x) for x in rows.x[:, 0, 3]]
    rows = replace(rows, labels=numbers, label_kind="numeric")
    probe, data = fitted(tmp_path, rows, kind="ridge", alpha=0.5)
    assert data.task == "numeric"
    y, train = np.array(numbers, dtype=np.float32), rows.rows_of("train")
    for layer in range(2):
        x = standardised(rows, layer)
        expected = Ridge(alpha=0.5).fit(x[train], y[train]).predict(x)
        np.testing.assert_allclose(probe.score(torch.from_numpy(rows.x))[:, layer, 0], expected, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("shrinkage", [1e-3, 0.3])
def test_lda_is_scikit_learns(tmp_path: Path, n_classes: int, shrinkage: float) -> None:
    rows = labelled_rows((0.7, 3.0), n_classes=n_classes)
    probe, _ = fitted(tmp_path, rows, kind="lda", shrinkage=shrinkage)
    chances = probe.chances(probe.score(torch.from_numpy(rows.x)))
    train = rows.rows_of("train")
    for layer in range(2):
        x = standardised(rows, layer)
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x[train], rows.y[train])
        np.testing.assert_allclose(chances[:, layer], model.predict_proba(x), atol=1e-8)


def test_mass_mean_is_lda_that_expects_both_classes_alike(tmp_path: Path) -> None:
    rows = labelled_rows((2.0,))
    # A third of one class is left out, so that priors make a difference.
    splits = [
        "test" if split == "train" and label == "true" and i % 3 else split
        for i, (split, label) in enumerate(zip(rows.splits, rows.labels, strict=True))
    ]
    rows = rows.with_splits(splits)  # type: ignore[arg-type]
    probe, _ = fitted(tmp_path, rows, kind="mass_mean", shrinkage=0.1)
    x, train = standardised(rows, 0), rows.rows_of("train")
    x, y = x[train], rows.y[train]
    means = np.stack([x[y == k].mean(axis=0) for k in (0, 1)])
    covariance = np.cov((x - means[y]).T, bias=True)
    covariance = 0.9 * covariance + 0.1 * np.trace(covariance) / 12 * np.eye(12)
    direction = np.linalg.solve(covariance, means[1] - means[0])
    expected = (x - means.mean(axis=0)) @ direction  # zero half way between the means
    score = probe.score(torch.from_numpy(rows.x))[torch.from_numpy(train), 0]
    np.testing.assert_allclose(score[:, 1] - score[:, 0], expected, atol=1e-8)


def test_the_shrinkage_is_scikit_learns_oas(tmp_path: Path) -> None:
    rows = labelled_rows((1.0,), n_rows=60)
    probe, _ = fitted(tmp_path, rows, kind="mass_mean")
    x, y = standardised(rows, 0)[rows.rows_of("train")], rows.y[rows.rows_of("train")]
    means = np.stack([x[y == k].mean(axis=0) for k in (0, 1)])
    covariance, shrinkage = oas(x - means[y], assume_centered=True)
    assert 0 < shrinkage < 1
    direction = np.linalg.solve(covariance, means[1] - means[0])
    np.testing.assert_allclose(probe.weight[0, 0], direction, atol=1e-8)


def test_moments_of_batches_are_those_of_all_rows_however_they_are_cut() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(50, 2, 3)) * [1e-3, 1, 1e3] + [0, 1e5, 0]).astype(np.float32)
    y = rng.integers(0, 3, 50)
    x64 = x.astype(np.float64)
    for sizes in ([50], [1, 20, 29], [7] * 7 + [1]):
        parts = zip(torch.from_numpy(x).split(sizes), torch.from_numpy(y).split(sizes), strict=True)
        found = CrossMoments.of_batches(({"x": a, "y": b} for a, b in parts), n_classes=3)
        assert found.class_counts.tolist() == np.bincount(y).tolist()
        for layer in range(2):
            scale = x64[:, layer].std(axis=0)
            covariance = np.cov(x64[:, layer].T, bias=True)
            difference = found.scatter[layer].numpy() / 50 - covariance
            assert np.abs(difference / np.outer(scale, scale)).max() < 1e-8
            for k in range(3):
                shift = x64[y == k, layer].mean(axis=0) - x64[:, layer].mean(axis=0)
                np.testing.assert_allclose(found.class_shifts()[layer, :, k], shift, atol=1e-8 * scale.max())


def test_fewer_rows_than_dimensions_need_a_penalty(tmp_path: Path) -> None:
    rows = labelled_rows((1.0,), n_rows=15)
    for kind, fix in (("ridge", {"alpha": 0.0}), ("lda", {"shrinkage": 0.0})):
        folder = tmp_path / kind
        with pytest.raises(RunError, match=f"layer 0: {kind} has no solution .*use probe"):
            fitted(folder, rows, kind=kind, **fix)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"probe\.alpha is -1"):
        RidgeProbe((0,), 3, ("a", "b"), alpha=-1)
    with pytest.raises(SettingsError, match=r"probe\.shrinkage is 2"):
        LDAProbe((0,), 3, ("a", "b"), shrinkage=2)
    with pytest.raises(SettingsError, match="at least two classes"):
        RidgeProbe((0,), 3, ("a",))
