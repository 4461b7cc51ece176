from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from easysteer_data.errors import RunError
from easysteer_data.shards import open_run
from easysteer_data.vectors import (
    ESTIMATORS,
    ContrastSource,
    fit_vectors,
    make_estimators,
    model_fingerprint,
    vector_report_json,
    vector_table,
)
from tests.runs import MadeRows, write_run
from tests.vectors.made import paired_rows, train_only


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return paired_rows()


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


@pytest.fixture(scope="module")
def lettered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose letters lie further apart than its classes, and go with them in the train split."""
    return write_run(tmp_path_factory.mktemp("lettered") / "run", paired_rows(letter=6.0))


def test_the_vector_is_the_estimators_and_the_figures_are_of_the_held_out_pairs(
    run: Path, rows: MadeRows
) -> None:
    fitted = fit_vectors(ContrastSource(open_run(run)), make_estimators(["diff_means"]))
    vector, (report,) = fitted.vectors["diff_means"], fitted.report.estimators
    train = rows.rows_of("train")
    x = rows.x.astype(np.float64)
    step = x[train][rows.y[train] == 1].mean(axis=0) - x[train][rows.y[train] == 0].mean(axis=0)
    for place, (layer_id, figures) in enumerate(zip((0, 4, 8), report.layers, strict=True)):
        np.testing.assert_allclose(vector.step(layer_id).numpy(), step[place], rtol=1e-5, atol=1e-7)
        assert figures.norm == pytest.approx(np.linalg.norm(step[place]), rel=1e-6)
        norm = np.linalg.norm(x[train, place], axis=-1).mean()
        assert figures.relative_norm == pytest.approx(figures.norm / norm, rel=1e-6)
        for split, found in (("validation", figures.validation), ("test", figures.test)):
            chosen = rows.rows_of(split)
            scores = x[chosen, place] @ step[place]
            assert found is not None
            assert found.pair_accuracy == np.mean(scores[1::2] > scores[::2])
            assert found.n_pairs == len(chosen) // 2
    units = step / np.linalg.norm(step, axis=1, keepdims=True)
    np.testing.assert_allclose(report.layer_cosines, units @ units.T, atol=1e-6)


def test_the_layer_is_chosen_on_validation(run: Path) -> None:
    fitted = fit_vectors(ContrastSource(open_run(run)), make_estimators(["diff_means"]))
    (report,) = fitted.report.estimators
    assert report.best is not None
    assert report.best.layer == 4
    assert fitted.best.provenance.best_layer == 4
    assert report.best.test is not None
    assert report.best.test.pair_accuracy is not None
    assert report.best.test.pair_accuracy > 0.95
    # What pairs have in common hides the class from a comparison of all rows.
    assert report.best.test.auroc < 0.8


def test_a_direction_of_the_letter_is_flagged_and_the_balanced_one_beats_it(lettered: Path) -> None:
    source = ContrastSource(open_run(lettered), confound="letter")
    fitted = fit_vectors(source, make_estimators(["diff_means", "diff_means_balanced"]))
    plain, balanced = fitted.report.estimators
    assert plain.confounded_by == "letter"
    assert plain.confounded_layers == (0, 4, 8)
    assert balanced.confounded_by is None
    assert fitted.report.best is balanced
    assert balanced.best is not None
    assert balanced.best.test is not None
    assert balanced.best.test.pair_accuracy is not None
    assert balanced.best.test.pair_accuracy > 0.9
    assert plain.layers[1].test is not None
    # Half of the held-out pairs have A for the true answer, which is all that the plain one sees.
    assert plain.layers[1].test.pair_accuracy == pytest.approx(0.5, abs=0.1)
    assert plain.layers[1].test.confound_auroc == pytest.approx(1, abs=0.1)
    table = vector_table(fitted.report)
    assert (
        "diff_means: CONFOUNDED: 3 of 3 layers tell letter apart better than the classes"
        in table.splitlines()
    )
    # Below a title and two lines of column names.
    assert all(line.endswith(" !") for line in table.splitlines()[5:8])


@pytest.fixture(scope="module")
def slanted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Letters far apart, in layer 4 with a step not square to the classes', and in 8 cancelled by luck."""
    made = paired_rows(240, letter=20.0)
    assert made.fields is not None
    is_a = np.array([fields["letter"] == "A" for fields in made.fields])
    true = np.array(made.labels) == "true"
    x = made.x.astype(np.float64)
    step = x[is_a].mean(axis=0) - x[~is_a].mean(axis=0)
    x[true, 1] += 0.2 * step[1]
    axis = step[2] / np.linalg.norm(step[2])
    x[true, 2] += 0.8 * np.linalg.svd(axis[None])[2][1]  # square to the letters' step
    train = made.rows_of("train")
    plain = x[train][true[train], 2].mean(axis=0) - x[train][~true[train], 2].mean(axis=0)
    x[true, 2] -= (plain @ axis) * axis
    return write_run(tmp_path_factory.mktemp("slanted") / "run", replace(made, x=x.astype(np.float32)))


def test_balancing_alone_leaves_a_slant_that_the_orthogonal_difference_does_not_have(slanted: Path) -> None:
    source = ContrastSource(open_run(slanted), confound="letter")
    (merely,) = fit_vectors(
        source, make_estimators(["diff_means_balanced"], orthogonal=False)
    ).report.estimators
    (free,) = fit_vectors(source, make_estimators(["diff_means_balanced"])).report.estimators
    for report, is_confounded in ((merely, True), (free, False)):
        found = report.at(4).test
        assert found is not None
        assert found.pair_accuracy is not None
        assert found.is_confounded is is_confounded
        assert (found.pair_accuracy > 0.95) is not is_confounded


def test_a_layer_that_is_free_of_the_letter_by_luck_is_not_chosen_for_it(slanted: Path) -> None:
    source = ContrastSource(open_run(slanted), confound="letter")
    (plain,) = fit_vectors(source, make_estimators(["diff_means"])).report.estimators
    assert plain.best is not None
    assert plain.best.validation is not None
    lucky, found = plain.at(8).validation, plain.best.validation
    assert lucky is not None
    assert plain.confounded_layers == (0, 4)
    assert lucky.pair_accuracy > found.pair_accuracy  # type: ignore[operator]
    assert plain.best.layer == 4
    assert found.pair_accuracy == found.confound_pair_accuracy
    # Most layers are the letter's, and so is the estimator.
    assert plain.confounded_by == "letter"
    tests = sorted(layer.test.pair_accuracy for layer in plain.layers if layer.test)  # type: ignore[type-var]
    assert plain.median_test_pair_accuracy == tests[1]


def test_every_estimator_finds_the_class_in_the_layer_that_has_it(run: Path) -> None:
    names = [name for name in ESTIMATORS if name not in ("lat", "diff_means_balanced")]
    fitted = fit_vectors(ContrastSource(open_run(run)), make_estimators(names))
    for report in fitted.report.estimators:
        assert report.best is not None
        assert report.best.layer == 4, report.name
    cosines = np.array(fitted.report.estimator_cosines[4])
    np.testing.assert_allclose(np.diag(cosines), 1)
    assert (cosines > 0.3).all()


def test_layers_one_by_one_give_the_same_as_all_at_once(lettered: Path) -> None:
    source = ContrastSource(open_run(lettered), confound="letter")
    together, apart = (fit_vectors(source, make_estimators(ESTIMATORS), size) for size in (10**9, 1))
    for name in ESTIMATORS:
        for layer_id in (0, 4, 8):
            torch.testing.assert_close(
                apart.vectors[name].step(layer_id), together.vectors[name].step(layer_id)
            )
    assert vector_table(apart.report) == vector_table(together.report)


def test_the_provenance_tells_where_a_vector_comes_from(run: Path) -> None:
    fitted = fit_vectors(ContrastSource(open_run(run)), make_estimators(["logistic"], C=0.5))
    origin = fitted.best.provenance
    assert (origin.estimator, origin.settings) == ("logistic", {"C": 0.5})
    assert origin.model_fingerprint == model_fingerprint({"model.safetensors": "a0" * 32})
    assert (origin.data_fingerprint, origin.data_set) == ("made-for-a-test", "made-up-corpus")
    assert origin.layer_convention == "made up"
    assert origin.sign == "from 'false' to 'true', the class of the higher index"
    assert origin.selection["split"] == "train"


def test_the_report_is_plain_json_that_names_what_was_chosen(lettered: Path) -> None:
    source = ContrastSource(open_run(lettered), confound="letter")
    report = fit_vectors(source, make_estimators(["diff_means", "diff_means_balanced"])).report
    values = json.loads(json.dumps(vector_report_json(report), allow_nan=False))
    assert values["best_estimator"] == "diff_means_balanced"
    plain, balanced = values["estimators"]
    assert plain["confounded_by"] == "letter"
    assert balanced["best_layer"] == 4
    assert balanced["layers"][1]["test"]["pair_accuracy"] > 0.9
    assert values["n_rows"] == {"train": 144, "validation": 48, "test": 48}
    assert len(values["estimator_cosines"]["4"]) == 2


def test_without_held_out_rows_there_is_a_vector_and_no_choice(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", train_only(paired_rows(20))))
    fitted = fit_vectors(ContrastSource(run), make_estimators(["diff_means", "paired_pca"]))
    assert fitted.report.best.name == "diff_means"
    assert fitted.best.provenance.best_layer is None
    assert all(figures.test is None for figures in fitted.report.best.layers)
    assert "     4" in vector_table(fitted.report)


def test_statistics_alone_give_the_difference_of_means_and_nothing_else(
    run: Path, rows: MadeRows, tmp_path: Path
) -> None:
    alone = ContrastSource(open_run(write_run(tmp_path / "run", rows, store_rows=False)))
    fitted = fit_vectors(alone, make_estimators(["diff_means"]))
    whole = fit_vectors(ContrastSource(open_run(run)), make_estimators(["diff_means"]))
    for layer_id in (0, 4, 8):
        assert torch.equal(fitted.best.step(layer_id), whole.best.step(layer_id))
    assert fitted.report.n_rows == whole.report.n_rows
    assert fitted.report.best.best is None
    with pytest.raises(RunError, match="keeps statistics only"):
        fit_vectors(alone, make_estimators(["paired_pca"]))


def test_a_layer_in_which_the_classes_are_equal_is_named(tmp_path: Path) -> None:
    rows = paired_rows(20)
    rows.x[:, 2] = 1.0
    source = ContrastSource(open_run(write_run(tmp_path / "run", rows)))
    with pytest.raises(
        RunError, match="layer 8: 'false' and 'true' do not differ along the direction of diff"
    ):
        fit_vectors(source, make_estimators(["diff_means"]))
