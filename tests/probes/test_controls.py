"""Shuffled labels, words and the most frequent answer; positions and other data sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes import ProbeData, fit_probe
from easysteer_data.probes.controls import shuffled_labels
from easysteer_data.settings import ProbeSettings
from tests.runs import SPLIT_CYCLE, MadeRows, labelled_rows, random_rows, write_run

QUICK: dict[str, Any] = {"bootstrap": 0, "control": False, "bag_of_tokens": False}


def paired(rows: MadeRows) -> MadeRows:
    """Prompts 2k and 2k + 1 are a group of one false and one true, in one split."""
    n = len(rows.n_rows)
    return replace(
        rows,
        labels=[("false", "true")[i % 2] for i in range(n)],
        groups=[f"pair-{i // 2}" for i in range(n)],
        splits=[SPLIT_CYCLE[i // 2 % 5] for i in range(n)],
    )


def data_of(folder: Path, rows: MadeRows, **options: Any) -> ProbeData:
    return ProbeData(ActivationDataModule(write_run(folder / "run", rows), **options))


def test_pairs_stay_pairs_when_their_labels_are_shuffled(tmp_path: Path) -> None:
    rows = paired(labelled_rows((1.0,), n_rows=400))
    data = data_of(tmp_path, rows)
    labels = shuffled_labels(data, seed=0)
    train = np.flatnonzero(np.array(rows.splits) == "train")
    assert (labels[train].view(-1, 2).sum(dim=1) == 1).all()
    swapped = (labels[train].numpy() != rows.y[train]).mean()
    assert 0.35 < swapped < 0.65
    held_out = np.flatnonzero(np.array(rows.splits) != "train")
    assert (labels[held_out].numpy() == rows.y[held_out]).all()
    assert shuffled_labels(data, seed=0).equal(labels)


def test_a_group_of_one_label_has_one_label_afterwards(tmp_path: Path) -> None:
    rows = random_rows(n_prompts=100)
    groups = [f"group-{i // 5}" for i in range(100)]
    splits = [SPLIT_CYCLE[i // 5 % 5] for i in range(100)]
    data = data_of(tmp_path, replace(rows, groups=groups, splits=splits))
    labels = shuffled_labels(data, seed=1)
    train = [i for i in range(100) if splits[i] == "train"]
    by_group = {(groups[i], int(labels[i])) for i in train}
    assert len(by_group) == len({groups[i] for i in train})
    before = Counter(label for label in (rows.labels[i] for i in train))
    assert Counter(("false", "true")[int(labels[i])] for i in train) == before


def test_the_control_reads_nothing_where_the_probe_reads_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", labelled_rows((4.0,), n_rows=1500))
    best = fit_probe(ActivationDataModule(run), ProbeSettings(bootstrap=50)).report.best
    assert best.test_accuracy > 0.95  # type: ignore[operator]
    assert best.control is not None
    assert abs(best.control["accuracy"].value - 0.5) < 0.12  # type: ignore[operator]
    assert best.selectivity == pytest.approx(
        best.test["accuracy"].value - best.control["accuracy"].value  # type: ignore[operator]
    )


def test_the_words_alone_are_scikit_learns_regression_on_token_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = labelled_rows((1.0,))
    # Token 7 comes more often in true prompts; 8 to 30 come at random.
    tokens = [[*([7] * rng.poisson(0.5 + 1.5 * y)), *rng.integers(8, 31, 6).tolist()] for y in rows.y]
    run = write_run(tmp_path / "run", replace(rows, prompt_tokens=tokens))
    report = fit_probe(ActivationDataModule(run), ProbeSettings(C=0.5, bootstrap=0, control=False)).report

    counts = np.array([[ids.count(token) for token in range(7, 31)] for ids in tokens])
    train, test = rows.rows_of("train"), rows.rows_of("test")
    model = LogisticRegression(C=0.5, tol=1e-9, max_iter=5000).fit(counts[train], rows.y[train])
    found = report.baselines["bag_of_tokens"]
    auroc = roc_auc_score(rows.y[test], model.decision_function(counts[test]))
    assert found["auroc"].value == pytest.approx(auroc, abs=1e-4)
    assert found["accuracy"].value == accuracy_score(rows.y[test], model.predict(counts[test]))
    assert auroc > 0.7


def test_the_majority_is_the_train_splits_and_tokens_may_be_unknown(tmp_path: Path) -> None:
    rows = labelled_rows((1.0,))
    labels = ["true" if i % 4 else "false" for i in range(500)]
    report = fit_probe(
        ActivationDataModule(write_run(tmp_path / "run", replace(rows, labels=labels))),
        ProbeSettings(bootstrap=0, control=False),
    ).report
    assert report.baselines.keys() == {"majority"}
    test = [labels[i] for i in rows.rows_of("test")]
    majority = report.baselines["majority"]
    assert majority["accuracy"].value == pytest.approx(test.count("true") / len(test))
    assert majority["auroc"].value == 0.5


def test_each_position_has_a_probe_and_the_best_on_validation_is_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = labelled_rows((0.0, 0.0), n_rows=400)
    y = rows.y
    x = np.repeat(rows.x, 2, axis=0)
    x[1::2, 1, 3] += 4 * y + rng.normal(size=400)  # the last of two rows tells the class, in layer 3
    rows = replace(rows, x=x, n_rows=[2] * 400, prompt_tokens=[[5, 6]] * 400)
    data = ActivationDataModule(write_run(tmp_path / "run", rows), rows={"positions": [-2, -1]})
    fitted = fit_probe(data, ProbeSettings(by_position=True, **QUICK))
    report = fitted.report
    assert [one.position for one in report.positions] == [-2, -1]
    assert (report.position, report.best_layer) == (-1, 3)
    assert report.layers == report.positions[1].layers
    alone = fit_probe(
        ActivationDataModule(tmp_path / "run", rows={"positions": [-1]}), ProbeSettings(**QUICK)
    ).report
    assert alone.layers == report.layers
    with pytest.raises(SettingsError, match=r"needs data\.rows\.positions"):
        fit_probe(ActivationDataModule(tmp_path / "run"), ProbeSettings(by_position=True, **QUICK))


def test_probes_of_two_data_sets_are_tested_on_each_other(tmp_path: Path) -> None:
    rows = labelled_rows((3.0, 0.5))
    mirrored = replace(rows, labels=[{"true": "false", "false": "true"}[str(one)] for one in rows.labels])
    one, other = write_run(tmp_path / "one", rows), write_run(tmp_path / "other", mirrored)
    settings = ProbeSettings(transfer=(str(other),), **QUICK)
    report = fit_probe(ActivationDataModule(one), settings).report
    assert report.transfer is not None
    assert (report.transfer.runs, report.transfer.layers) == ((str(one), str(other)), (0, 0))
    own, crossed = report.transfer.metrics["auroc"][0]
    assert own == report.test_auroc
    assert crossed == pytest.approx(1 - own)  # type: ignore[operator]
    assert report.transfer.metrics["auroc"][1] == (pytest.approx(crossed), pytest.approx(own))


def test_other_data_sets_must_have_the_same_model_layers_and_classes(tmp_path: Path) -> None:
    rows = labelled_rows((3.0, 0.5))
    data = ActivationDataModule(write_run(tmp_path / "one", rows))
    renamed = replace(
        rows, names=("no", "yes"), labels=[{"true": "yes", "false": "no"}[str(one)] for one in rows.labels]
    )

    def fit(folder: Path, **settings: Any) -> Any:
        return fit_probe(data, ProbeSettings(transfer=(str(folder),), **settings, **QUICK)).report.transfer

    other = write_run(tmp_path / "renamed", renamed)
    with pytest.raises(RunError, match=r"classes no, yes.*false, true; set probe\.transfer_labels=order"):
        fit(other)
    matched = fit(other, transfer_labels="order")
    assert matched.metrics["auroc"][0][0] == matched.metrics["auroc"][0][1]

    with pytest.raises(RunError, match=r"has layers \[0, 3, 6\]"):
        fit(write_run(tmp_path / "deeper", labelled_rows((3.0, 0.5, 1.0))))
    with pytest.raises(RunError, match="is of another model"):
        fit(write_run(tmp_path / "model", rows, model={"name": "another"}))
    with pytest.raises(SettingsError, match="which is the run itself"):
        fit(tmp_path / "one")
