from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError
from easysteer_data.probes import ProbeReport, fit_linear_probe, fit_probe, load_probe
from easysteer_data.settings import ProbeSettings
from tests.runs import MadeRows, labelled_rows, write_run

STRENGTHS = (0.0, 0.7, 3.0, 1.5)
QUICK: dict[str, Any] = {"bootstrap": 0, "control": False, "bag_of_tokens": False}


def oracle(rows: MadeRows, layer: int, **settings: Any) -> tuple[LogisticRegression, dict[str, float]]:
    """scikit-learn's probe of one layer, and its figures."""
    train, validation, test = (rows.rows_of(split) for split in ("train", "validation", "test"))
    x: npt.NDArray[np.float64] = rows.x[:, layer].astype(np.float64)
    std = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(std == 0, 1, std)
    model = LogisticRegression(**settings, tol=1e-9, max_iter=10_000).fit(x[train], rows.y[train])

    def auroc(split: npt.NDArray[np.int64]) -> float:
        scores = model.predict_proba(x[split])
        two = len(rows.names) == 2
        return float(roc_auc_score(rows.y[split], scores[:, 1] if two else scores, multi_class="ovr"))

    figures = {
        "val_auroc": auroc(validation),
        "test_auroc": auroc(test),
        "test_accuracy": accuracy_score(rows.y[test], model.predict(x[test])),
    }
    return model, figures


def assert_close_to_oracle(report: ProbeReport, rows: MadeRows, tolerance: float, **settings: Any) -> None:
    for layer, result in enumerate(report.layers):
        _, figures = oracle(rows, layer, **settings)
        for name, value in figures.items():
            assert getattr(result, name) == pytest.approx(value, abs=tolerance), (result, name)


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return labelled_rows(STRENGTHS)


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


@pytest.mark.parametrize("C", [1.0, 0.01])
def test_lbfgs_finds_the_probe_of_scikit_learn_in_every_layer(
    rows: MadeRows,
    run: Path,
    tmp_path: Path,
    C: float,  # noqa: N803
) -> None:
    weights = tmp_path / "probe.safetensors"
    report = fit_linear_probe(ActivationDataModule(run, batch_size=None), C=C, weights=weights)

    assert [result.layer for result in report.layers] == [0, 3, 6, 9]
    assert_close_to_oracle(report, rows, tolerance=1e-6, C=C)
    probe = load_probe(weights).tensors()
    for layer, (weight, bias) in enumerate(zip(probe["weight"], probe["bias"], strict=True)):
        expected, _ = oracle(rows, layer, C=C)
        np.testing.assert_allclose(weight, expected.coef_, atol=1e-4)
        np.testing.assert_allclose(bias, expected.intercept_, atol=1e-4)


def test_lbfgs_finds_the_probe_of_scikit_learn_for_several_classes(tmp_path: Path) -> None:
    rows = labelled_rows(STRENGTHS, n_classes=4)
    weights = tmp_path / "probe.safetensors"
    run = write_run(tmp_path / "run", rows)
    report = fit_linear_probe(ActivationDataModule(run, batch_size=None), C=0.1, weights=weights)

    assert_close_to_oracle(report, rows, tolerance=1e-6, C=0.1)
    for layer, weight in enumerate(load_probe(weights).tensors()["weight"]):
        np.testing.assert_allclose(weight, oracle(rows, layer, C=0.1)[0].coef_, atol=1e-4)


def test_adam_on_minibatches_comes_close_to_scikit_learn(rows: MadeRows, run: Path) -> None:
    datamodule = ActivationDataModule(run, batch_size=32)
    settings = ProbeSettings(C=0.1, solver="adam", max_epochs=40, patience=None, **QUICK)
    report = fit_probe(datamodule, settings).report
    assert_close_to_oracle(report, rows, tolerance=0.02, C=0.1)


def test_a_layer_alone_has_the_probe_that_it_has_among_others(run: Path) -> None:
    every = fit_linear_probe(ActivationDataModule(run, batch_size=None))
    alone = fit_linear_probe(ActivationDataModule(run, layers=6, batch_size=None))
    some = fit_linear_probe(ActivationDataModule(run, layers=[9, 6], batch_size=None))

    assert alone.layers == (every.layers[2],)
    assert some.layers == (every.layers[2], every.layers[3])


def test_the_report_counts_rows_and_says_where_they_come_from(rows: MadeRows, run: Path) -> None:
    report = fit_linear_probe(ActivationDataModule(run, batch_size=None))

    counts = [len(rows.rows_of(split)) for split in ("train", "validation", "test")]
    assert [report.n_train, report.n_validation, report.n_test] == counts
    assert report.label_names == ("false", "true")
    found = report.provenance
    assert (found.run_fingerprint, found.data_set, found.model) == (
        "made-for-a-test",
        "made-up-corpus",
        "made-up-model",
    )


def test_the_layer_is_chosen_on_validation_although_test_prefers_another(tmp_path: Path) -> None:
    rows = labelled_rows((3.0, 3.0))
    x = rows.x.copy()
    noise = np.random.default_rng(2).permutation
    x[rows.rows_of("test"), 0] = noise(x[rows.rows_of("test"), 0])
    x[rows.rows_of("validation"), 1] = noise(x[rows.rows_of("validation"), 1])
    run = write_run(tmp_path / "run", replace(rows, x=x))

    report = fit_linear_probe(ActivationDataModule(run, batch_size=None))

    good_on_validation, good_on_test = report.layers
    assert good_on_test.test_auroc > 0.9 > 0.7 > good_on_validation.test_auroc
    assert report.best_layer == good_on_validation.layer
    assert report.test_auroc == good_on_validation.test_auroc
    assert report.test_accuracy == good_on_validation.test_accuracy


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_of_one_class_is_refused_with_its_counts(rows: MadeRows, tmp_path: Path, split: Any) -> None:
    labels = ["true" if of == split else label for of, label in zip(rows.splits, rows.labels, strict=True)]
    run = write_run(tmp_path / "run", replace(rows, labels=labels))
    n_rows = len(rows.rows_of(split))
    with pytest.raises(RunError, match=f"split '{split}': its rows are 0 of 'false', {n_rows} of 'true'"):
        fit_linear_probe(ActivationDataModule(run, batch_size=None))


def test_an_empty_split_is_refused(rows: MadeRows, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows.with_splits(["train", "test"] * (len(rows.splits) // 2)))
    with pytest.raises(RunError, match="no rows in split 'validation'"):
        fit_linear_probe(ActivationDataModule(run, batch_size=None))


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        (None, None, "has no labels, but a probe needs"),
        ("numeric", 0.5, "has numbers as labels, but a logistic probe needs classes; use ridge or mlp"),
    ],
)
def test_a_run_without_classes_is_refused(
    rows: MadeRows, tmp_path: Path, kind: Any, label: Any, message: str
) -> None:
    run = write_run(tmp_path / "run", replace(rows, labels=[label] * len(rows.labels), label_kind=kind))
    with pytest.raises(RunError, match=message):
        fit_linear_probe(ActivationDataModule(run, batch_size=None))


def test_rows_without_a_label_are_refused_unless_left_out(rows: MadeRows, tmp_path: Path) -> None:
    labels = [None, *rows.labels[1:]]
    run = write_run(tmp_path / "run", replace(rows, labels=labels))
    with pytest.raises(RunError, match="1 of 300 rows of split 'train' have no label"):
        fit_linear_probe(ActivationDataModule(run, batch_size=None))

    report = fit_linear_probe(ActivationDataModule(run, batch_size=None, labelled_only=True))
    assert report.n_train == 299


def test_the_batch_size_makes_no_difference_to_lbfgs(run: Path) -> None:
    at_once = fit_linear_probe(ActivationDataModule(run, batch_size=None))
    assert fit_linear_probe(ActivationDataModule(run, batch_size=64)).layers == at_once.layers


def test_early_stopping_keeps_each_layers_best_epoch(rows: MadeRows, run: Path) -> None:
    # Without penalty and with large steps the first epochs are the best.
    settings = ProbeSettings(solver="adam", C=1e6, lr=0.3, max_epochs=60, patience=3, **QUICK)
    data = ActivationDataModule(run, batch_size=32)
    fitted = fit_probe(data, settings)
    patient = fit_probe(data, replace(settings, patience=None))

    x = torch.from_numpy(rows.x[rows.rows_of("validation")])
    y = torch.from_numpy(rows.y[rows.rows_of("validation")])
    losses = [
        torch.nn.functional.cross_entropy(
            one.probe.score(x).transpose(1, 2), y[:, None].expand(-1, 4), reduction="none"
        )
        for one in (fitted, patient)
    ]
    gained = losses[1].mean(dim=0) - losses[0].mean(dim=0)
    assert (gained > -1e-6).all()
    assert (gained[[0, 1, 3]] > 0.01).all()  # the layer in between tells the classes apart entirely


def test_training_is_silent(run: Path, capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    level = logging.getLogger("lightning.pytorch").level
    fit_linear_probe(ActivationDataModule(run, batch_size=None))

    assert tuple(capfd.readouterr()) == ("", "")
    assert not caplog.records
    assert logging.getLogger("lightning.pytorch").level == level


def test_training_shows_its_progress_on_demand(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fit_linear_probe(ActivationDataModule(run), solver="adam", max_epochs=1, progress=True)
    assert "Epoch 0" in "".join(capfd.readouterr())
