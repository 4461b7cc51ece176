"""What training a probe found: figures per layer and the layer chosen. Plain numbers, no tensor, no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Figures of one layer's probe on the held-out splits, each between 0 and 1.

    Attributes:
        layer: 0-based decoder block.
        val_auroc: area under the ROC curve on the validation split (multi-class: the mean over the
            classes of one against the rest).
        test_accuracy: share of the test split's rows that get their own class.
        test_auroc: as `val_auroc`, on the test split.
    """

    layer: int
    val_auroc: float
    test_accuracy: float
    test_auroc: float


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Figures of a probe on every layer of a run.

    Attributes:
        layers: one result a layer, ascending.
        n_train: rows of the train split.
        n_validation: rows of the validation split.
        n_test: rows of the test split.
        label_names: the classes, in the order of their index.
        run_fingerprint: of the run that the rows came from.
        data_set: name of the corpus, for titles.
        model: name of the model, for titles.
    """

    layers: tuple[LayerResult, ...]
    n_train: int
    n_validation: int
    n_test: int
    label_names: tuple[str, ...]
    run_fingerprint: str
    data_set: str
    model: str

    @property
    def best(self) -> LayerResult:
        """The layer with the highest validation AUROC, the lowest of equals; the test split has no say."""
        return max(self.layers, key=lambda result: (result.val_auroc, -result.layer))

    @property
    def best_layer(self) -> int:
        """Decoder block of `best`."""
        return self.best.layer

    @property
    def test_auroc(self) -> float:
        """Test AUROC of the best layer."""
        return self.best.test_auroc

    @property
    def test_accuracy(self) -> float:
        """Test accuracy of the best layer."""
        return self.best.test_accuracy
