"""Fits from a notebook: the same as from the rooms below, and as scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import easysteer_data
from easysteer_data import figures_of, fit_probe, fit_vector, open_run
from easysteer_data.errors import SettingsError
from tests.runs import MadeRows, labelled_rows, write_run
from tests.vectors.made import paired_rows


@pytest.fixture(scope="module")
def made() -> MadeRows:
    return labelled_rows([0.0, 3.0])


@pytest.fixture(scope="module")
def run(made: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> easysteer_data.Run:
    return open_run(write_run(tmp_path_factory.mktemp("runs") / "run", made))


def test_a_probe_of_a_run_is_scikit_learns(run: easysteer_data.Run, made: MadeRows) -> None:
    fitted = fit_probe(run, C=0.5, bootstrap=0, control=False)
    assert fitted.report.best_layer == 3
    x = {split: run.rows(layer=3, split=split).double().numpy() for split in ("train", "test")}
    y = {split: made.y[made.rows_of(split)] for split in ("train", "test")}
    scaler = StandardScaler().fit(x["train"])
    classifier = LogisticRegression(C=0.5, max_iter=5000).fit(scaler.transform(x["train"]), y["train"])
    expected = roc_auc_score(y["test"], classifier.decision_function(scaler.transform(x["test"])))
    assert fitted.report.test_auroc == pytest.approx(expected, abs=1e-3)


def test_a_probe_of_some_rows_and_layers_takes_the_datamodules_options(run: easysteer_data.Run) -> None:
    fitted = fit_probe(run, "ridge", layers=[3], data={"rows": {"limit": 60}}, bootstrap=0, control=False)
    assert [layer.layer for layer in fitted.report.layers] == [3]
    assert fitted.report.n_train == 60
    assert fitted.report.kind == "ridge"


def test_a_vector_of_a_run_is_the_difference_of_means(run: easysteer_data.Run, made: MadeRows) -> None:
    fitted = fit_vector(run, layers=3)
    rows, y = run.rows(layer=3, split="train").double().numpy(), made.y[made.rows_of("train")]
    step = rows[y == 1].mean(axis=0) - rows[y == 0].mean(axis=0)
    np.testing.assert_allclose(fitted.best.step(3).numpy(), step, rtol=1e-5, atol=1e-5)


def test_every_figure_of_a_result_is_at_hand(run: easysteer_data.Run, tmp_path: Path) -> None:
    probe = figures_of(fit_probe(run, bootstrap=20))
    assert {"probe-auroc", "probe-accuracy", "probe-roc", "probe-calibration", "probe-confusion"} == set(
        probe
    )
    lettered = open_run(write_run(tmp_path / "run", paired_rows(30, letter=6.0)))
    vectors = figures_of(fit_vector(lettered, ["diff_means", "diff_means_balanced"]))
    assert {"vector-diff-means", "vector-diff-means-balanced", "vector-comparison", "vector-norms"} <= set(
        vectors
    )
    labels = [text.get_text() for text in vectors["vector-diff-means"].legends[0].get_texts()]
    assert "letter, validation" in labels


def test_what_does_not_exist_is_refused_by_name(run: easysteer_data.Run) -> None:
    with pytest.raises(SettingsError, match=r"'bootstraps'; did you mean 'bootstrap'"):
        fit_probe(run, bootstraps=3)
    with pytest.raises(SettingsError, match=r"there is no 'pca'"):
        fit_vector(run, "pca")
