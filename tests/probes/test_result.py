from __future__ import annotations

from easysteer_data.probes import LayerResult, ProbeReport


def report(*val_aurocs: float) -> ProbeReport:
    layers = tuple(
        LayerResult(layer, val_auroc, test_accuracy=0.5, test_auroc=1 - val_auroc)
        for layer, val_auroc in enumerate(val_aurocs)
    )
    return ProbeReport(layers, 3, 2, 1, ("no", "yes"), "run", "data", "model")


def test_the_best_layer_is_the_best_on_validation() -> None:
    assert report(0.6, 0.9, 0.7).best_layer == 1
    assert report(0.6, 0.9, 0.7).test_auroc == 1 - 0.9


def test_of_equally_good_layers_the_lowest_is_chosen() -> None:
    assert report(0.6, 0.9, 0.9, 0.9).best_layer == 1
