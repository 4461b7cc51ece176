"""What fitting vectors found: figures by estimator and layer, what was chosen. Plain numbers, no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from easysteer_data.vectors.figures import SplitFigures


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """Figures of one estimator's direction in one layer.

    Attributes:
        layer: 0-based decoder block.
        norm: length of the step from the negative to the positive class, in the units of the rows.
        relative_norm: `norm` / the mean norm of the train split's rows.
        validation: None where that split lacks rows or a class.
        test: as `validation`.
    """

    layer: int
    norm: float
    relative_norm: float
    validation: SplitFigures | None
    test: SplitFigures | None

    @property
    def score(self) -> tuple[float, float]:
        """What the layer is chosen by, the higher the better: accuracy of pairs if there are any, AUROC.

        Both without the confound's part, as else the layer of many would be chosen that by luck has little of
        it, and an estimator that finds the confound would pass for one that does not.
        """
        found = self.validation
        if found is None:
            return -1.0, -1.0
        paired = found.free_pair_accuracy
        return (found.free_auroc if paired is None else paired), found.free_auroc


@dataclass(frozen=True, slots=True)
class EstimatorReport:
    """Figures of one estimator.

    Attributes:
        name: its name.
        settings: its settings.
        layers: figures of each layer, ascending.
        layer_cosines: cosine between the directions of every two layers, in the order of `layers`.
        confound: the field that was checked, None = none.
    """

    name: str
    settings: Mapping[str, object]
    layers: tuple[LayerFigures, ...]
    layer_cosines: tuple[tuple[float, ...], ...]
    confound: str | None

    @property
    def best(self) -> LayerFigures | None:
        """The layer that does best on validation, the lowest of equals; the test split has no say."""
        if all(figures.validation is None for figures in self.layers):
            return None
        return max(self.layers, key=lambda figures: (figures.score, -figures.layer))

    @property
    def confounded_layers(self) -> tuple[int, ...]:
        """The layers whose direction separates the confound better than the classes, on validation."""
        return tuple(
            figures.layer
            for figures in self.layers
            if figures.validation is not None and figures.validation.is_confounded
        )

    @property
    def confounded_by(self) -> str | None:
        """The confound, if the best layer is one of `confounded_layers`, or most layers are."""
        if self.best is None:
            return None
        found = self.confounded_layers
        is_confounded = self.best.layer in found or 2 * len(found) > len(self.layers)
        return self.confound if is_confounded else None

    @property
    def median_test_pair_accuracy(self) -> float | None:
        """Accuracy of test pairs of the middle layer of all, which no choice of a layer flatters."""
        tests = [figures.test for figures in self.layers if figures.test is not None]
        paired = [test.pair_accuracy for test in tests if test.pair_accuracy is not None]
        return median(paired) if paired else None

    def at(self, layer: int) -> LayerFigures:
        """Figures of a layer; KeyError where it was not fitted."""
        return {figures.layer: figures for figures in self.layers}[layer]


@dataclass(frozen=True, slots=True)
class VectorReport:
    """Figures of every estimator on a run.

    Attributes:
        estimators: in the order in which they were asked for.
        estimator_cosines: layer -> cosine between every two estimators, in the order of `estimators`.
        n_rows: split -> rows.
        negative: the class that directions point away from.
        positive: the class that they point to.
        run_fingerprint: of the run that the rows came from.
        data_set: name of the corpus, for titles.
        model: name of the model, for titles.
    """

    estimators: tuple[EstimatorReport, ...]
    estimator_cosines: Mapping[int, tuple[tuple[float, ...], ...]]
    n_rows: Mapping[str, int]
    negative: str
    positive: str
    run_fingerprint: str
    data_set: str
    model: str

    @property
    def best(self) -> EstimatorReport:
        """The estimator whose best layer does best on validation, one that is not confounded where there is.

        The first of equals, and the first where there is no validation split.
        """
        return max(
            self.estimators,
            key=lambda one: (one.confounded_by is None, one.best.score if one.best else (-1.0, -1.0)),
        )
