from __future__ import annotations

import json

from easysteer_data.probes import BestLayer, Figure, LayerResult, ProbeReport, Provenance
from easysteer_data.probes.layer_result import Task, best_of
from easysteer_data.probes.result import SplitCounts


def layer(number: int, val_auroc: float | None, control: float | None = None) -> LayerResult:
    return LayerResult(
        number,
        {"auroc": Figure(val_auroc)},
        {"auroc": Figure(0.7), "accuracy": Figure(0.75, 0.5, 1.0)},
        None if control is None else {"accuracy": Figure(control)},
    )


def test_the_best_layer_is_the_best_on_validation() -> None:
    assert best_of((layer(0, 0.6), layer(4, 0.9), layer(8, 0.7)), "classes").layer == 4


def test_of_equally_good_layers_the_lowest_is_chosen() -> None:
    layers = (layer(0, 0.6), layer(3, 0.9), layer(4, 0.9 + 1e-9), layer(5, None))
    assert best_of(layers, "classes").layer == 3


def test_numbers_are_chosen_by_r2() -> None:
    layers = tuple(
        LayerResult(n, {"r2": Figure(r2)}, {"r2": Figure(0.0)}) for n, r2 in ((0, -2.0), (1, -0.5))
    )
    assert best_of(layers, "numeric").layer == 1
    assert (layers[0].val_auroc, layers[0].test_accuracy) == (None, None)


def test_selectivity_is_what_the_labels_add_to_shuffled_ones() -> None:
    assert layer(0, 0.6, control=0.5).selectivity == 0.25
    assert layer(0, 0.6).selectivity is None


def test_the_report_is_plain_json_that_keeps_its_first_names() -> None:
    task: Task = "classes"
    report = ProbeReport(
        kind="lda",
        settings={"shrinkage": None},
        task=task,
        label_names=("no", "yes"),
        layers=(layer(2, 0.8, control=0.5),),
        counts={
            "train": SplitCounts(9, 6, 3, 6),
            "validation": SplitCounts(2, 2, 1, 2),
            "test": SplitCounts(1, 1, 1, 1),
        },
        provenance=Provenance(
            "runs/a", "abc", "data", "model", "hidden_states", "after block l", {"zero": 2}
        ),
        best_layer=2,
        details=BestLayer(),
    )
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (found["n_train"], found["n_validation"], found["n_test"]) == (6, 2, 1)
    assert (found["best_layer"], found["test_auroc"], found["test_accuracy"]) == (2, 0.7, 0.75)
    assert (found["run_fingerprint"], found["data_set"], found["model"]) == ("abc", "data", "model")
    assert (found["label_names"], found["gates"]) == (["no", "yes"], {"zero": 2})
    (entry,) = found["layers"]
    assert (entry["layer"], entry["val_auroc"], entry["selectivity"]) == (2, 0.8, 0.25)
    assert entry["test"]["accuracy"] == {"value": 0.75, "low": 0.5, "high": 1.0}
