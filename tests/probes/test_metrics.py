from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

from easysteer_data.errors import RunError
from easysteer_data.probes.metrics import LayerMetrics, check_classes


# Scores of several classes are probabilities, which scikit-learn too takes for equal when they round to 1.
@pytest.mark.parametrize(("n_classes", "scale"), [(2, 0.01), (2, 1), (2, 100), (5, 0.01), (5, 5)])
def test_figures_equal_scikit_learns_over_several_batches(n_classes: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, 300)
    logits = scale * (rng.normal(size=(300, 3, 1 if n_classes == 2 else n_classes)))
    metrics = LayerMetrics(3, n_classes)
    for rows in np.array_split(np.arange(300), 7):
        metrics.update(torch.from_numpy(logits[rows]), torch.from_numpy(y[rows]))

    scores = metrics.scores()
    for layer in range(3):
        of_layer = logits[:, layer]
        if n_classes == 2:
            auroc, predicted = roc_auc_score(y, of_layer[:, 0]), of_layer[:, 0] > 0
        else:
            softmax = np.exp(of_layer) / np.exp(of_layer).sum(axis=1, keepdims=True)
            auroc, predicted = roc_auc_score(y, softmax, multi_class="ovr"), of_layer.argmax(axis=1)
        assert scores.auroc[layer] == pytest.approx(auroc, abs=1e-6)
        assert scores.accuracy[layer] == pytest.approx(accuracy_score(y, predicted), abs=1e-6)
    assert metrics.counts() == np.bincount(y).tolist()


def test_a_reset_forgets_every_batch() -> None:
    metrics = LayerMetrics(1, 2)
    target = torch.tensor([0, 1, 1])
    metrics.update(torch.tensor([1.0, -1.0, -1.0]).view(3, 1, 1), target)
    metrics.reset()
    metrics.update(torch.tensor([-1.0, 1.0, 2.0]).view(3, 1, 1), target)
    assert metrics.counts() == [1, 2]
    assert (metrics.scores().accuracy, metrics.scores().auroc) == ([1.0], [1.0])


def test_a_split_without_a_class_is_refused_with_all_counts() -> None:
    check_classes("test", [3, 1], ["no", "yes"])
    with pytest.raises(RunError, match=r"split 'test': its rows are 3 of 'no', 0 of 'yes', 2 of 'maybe'"):
        check_classes("test", [3, 0, 2], ["no", "yes", "maybe"])
