"""Figures of one layer's probe, and which layer they make the best. Plain numbers, no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Task = Literal["classes", "numeric"]

# What the layer is chosen by, the higher the better.
SELECTED_BY: Mapping[Task, str] = {"classes": "auroc", "numeric": "r2"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure on one split.

    Attributes:
        value: on the split's examples as they are; None where it is undefined, e.g. a correlation with a
            constant.
        low: lower end of the bootstrap interval (groups drawn with replacement), None without one.
        high: its upper end.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


Figures = Mapping[str, Figure]
"""Name -> figure: accuracy, auroc, average_precision, ece, brier; of numbers r2, mae, pearson, spearman."""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Figures of one layer's probe on the held-out splits.

    Attributes:
        layer: 0-based decoder block.
        validation: figures on the validation split.
        test: figures on the test split.
        control: as `test`, of a probe that was trained on shuffled labels; None without that control.
    """

    layer: int
    validation: Figures
    test: Figures
    control: Figures | None = None

    @property
    def val_auroc(self) -> float | None:
        """AUROC on validation (several classes: mean of one against the rest); None for numeric labels."""
        return _value(self.validation, "auroc")

    @property
    def test_auroc(self) -> float | None:
        """As `val_auroc`, on the test split."""
        return _value(self.test, "auroc")

    @property
    def test_accuracy(self) -> float | None:
        """Share of the test split's examples that get their own class; None for numeric labels."""
        return _value(self.test, "accuracy")

    @property
    def selectivity(self) -> float | None:
        """Test accuracy minus the control's (for numeric labels, R2); None without the control."""
        name = "accuracy" if "accuracy" in self.test else "r2"
        own, control = _value(self.test, name), _value(self.control or {}, name)
        return None if own is None or control is None else own - control

    def to_json(self) -> dict[str, Any]:
        """Its part of report.json."""
        return {
            "layer": self.layer,
            "val_auroc": self.val_auroc,
            "test_accuracy": self.test_accuracy,
            "test_auroc": self.test_auroc,
            "selectivity": self.selectivity,
            "validation": figures_json(self.validation),
            "test": figures_json(self.test),
            "control": None if self.control is None else figures_json(self.control),
        }


def best_of(layers: tuple[LayerResult, ...], task: Task) -> LayerResult:
    """The layer that does best on validation, the lowest of equals."""
    return max(layers, key=lambda layer: (validation_score(layer, task), -layer.layer))


def validation_score(layer: LayerResult, task: Task) -> float:
    """What a layer is chosen by; rounded, so that no rounding of sums decides between equally good ones."""
    value = _value(layer.validation, SELECTED_BY[task])
    return float("-inf") if value is None else round(value, 6)


def _value(figures: Figures, name: str) -> float | None:
    return figures[name].value if name in figures else None


def figures_json(figures: Figures) -> dict[str, Any]:
    """Its part of report.json."""
    return {name: asdict(figure) for name, figure in figures.items()}
