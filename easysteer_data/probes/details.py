"""What is told of the best layer alone: curves, confusion, the prompts at both ends. Plain numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RocCurve:
    """One class against the rest; both sides from 0 to 1, ascending.

    Attributes:
        label: the class that counts as positive.
        false_positive_rate: of each threshold, from the highest down.
        true_positive_rate: of each threshold.
    """

    label: str
    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Examples whose predicted chance lies in one bin; bins without any are left out.

    For two classes the chance is that of the class of index 1 and the share is of examples of that class;
    for more, the chance is that of the predicted class and the share is of examples that are of it.

    Attributes:
        low: lower edge of the bin.
        high: its upper edge.
        n: examples in it.
        predicted: their mean predicted chance.
        observed: the share of them for which it came true.
    """

    low: float
    high: float
    n: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt of the test split and what the probe makes of it, the mean of its rows.

    Attributes:
        prompt: index of the prompt in the run's prompt table, where its text is.
        id: its id there.
        label: its label, as text.
        predicted: the class predicted, or the number.
        score: two classes: log odds of the class of index 1; more: log chance of the prompt's own class;
            numeric labels: the number predicted.
    """

    prompt: int
    id: str
    label: str
    predicted: str
    score: float


@dataclass(frozen=True, slots=True)
class BestLayer:
    """The best layer's probe on the test split.

    Attributes:
        roc: one curve for two classes, else one a class; empty for numeric labels.
        calibration: the bins of the ECE, ascending; empty for numeric labels.
        confusion: examples by [true class][predicted class]; empty for numeric labels.
        top: the prompts of the highest scores, from the highest down.
        bottom: those of the lowest, from the lowest up.
        predictions: for numeric labels, (label, predicted number) of up to a thousand examples.
    """

    roc: tuple[RocCurve, ...] = ()
    calibration: tuple[CalibrationBin, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    top: tuple[ScoredPrompt, ...] = ()
    bottom: tuple[ScoredPrompt, ...] = ()
    predictions: tuple[tuple[float, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Its part of report.json."""
        return asdict(self)
