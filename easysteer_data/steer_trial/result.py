"""What a trial of a steering vector found: figures by layers and scale, texts. Plain numbers, no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from easysteer_data.steer_options import Algorithm, TargetName


@dataclass(frozen=True, slots=True)
class Figure:
    """A score over all prompts, with its 95 % bootstrap interval over prompts.

    Attributes:
        value: the score.
        low: lower end of the interval.
        high: upper end.
        n: prompts or questions that it is taken over.
    """

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class ScoreInfo:
    """What a score is.

    Attributes:
        name: its key in `Cell.figures`: "answer", "probe", "separation", "perplexity", "repetition",
            "length".
        title: a few words for an axis.
        meaning: a sentence, with what it was read with and where.
    """

    name: str
    title: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One scale of one curve.

    Attributes:
        scale: see `SteerReport.scale_unit`; 0 is without steering.
        figures: score's name -> figure.
    """

    scale: float
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """Neighbouring scales of a curve's grid, 0 among them.

    Attributes:
        lowest: the lowest.
        highest: the highest.
        n_scales: how many of the grid's scales, 0 included.
    """

    lowest: float
    highest: float
    n_scales: int

    def __contains__(self, scale: float) -> bool:
        return self.lowest <= scale <= self.highest


@dataclass(frozen=True, slots=True)
class Curve:
    """All scales at one place.

    Attributes:
        layers: decoder blocks that are steered together.
        cells: ascending by scale; the one of scale 0 is the same in every curve.
        rising: around 0, the scales over which the target score rises from each to the next.
        usable: those of `rising` that keep to the limits; of "erase", all that do.
    """

    layers: tuple[int, ...]
    cells: tuple[Cell, ...]
    rising: ScaleRange
    usable: ScaleRange

    def at(self, scale: float) -> Cell:
        """The cell of a scale; KeyError where the grid has none."""
        found = {cell.scale: cell for cell in self.cells}
        return found[scale]


@dataclass(frozen=True, slots=True)
class SampleText:
    """A completion under steering.

    Attributes:
        layers: decoder blocks that were steered, none at scale 0.
        scale: how far.
        text: the completion.
    """

    layers: tuple[int, ...]
    scale: float
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and its completions.

    Attributes:
        id: of the prompt in its corpus.
        prompt: its text.
        completions: the one without steering first, then curve by curve, ascending by scale.
    """

    id: str
    prompt: str
    completions: tuple[SampleText, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a usable scale keeps to.

    Attributes:
        perplexity_ratio: highest perplexity, in multiples of that of scale 0.
        repetition: highest repetition rate.
    """

    perplexity_ratio: float
    repetition: float


@dataclass(frozen=True, slots=True)
class Best:
    """The usable cell that changes the target score the most.

    Attributes:
        layers: its curve.
        scale: its scale.
        change: target score minus that of scale 0.
    """

    layers: tuple[int, ...]
    scale: float
    change: float


@dataclass(frozen=True, slots=True)
class SteerReport:
    """A trial's figures.

    Attributes:
        model: name of the model.
        data_set: name of the corpus that the vector was fitted on.
        estimator: of the vector.
        sign: what the vector points to, in words.
        algorithm: how it was applied.
        scale_unit: what scale 1 is, in words.
        prompts: where the prompts come from, in words.
        target: name of the score that should rise with the scale.
        limits: what a usable scale keeps to.
        scores: what each score is, in the order in which they are shown.
        curves: one for each entry of `steer.layers`.
        samples: some prompts with all their completions.
    """

    model: str
    data_set: str
    estimator: str
    sign: str
    algorithm: Algorithm
    scale_unit: str
    prompts: str
    target: TargetName
    limits: Limits
    scores: tuple[ScoreInfo, ...]
    curves: tuple[Curve, ...]
    samples: tuple[Sample, ...]

    @property
    def baseline(self) -> Cell:
        """The cell without steering."""
        return self.curves[0].at(0.0)

    @property
    def best(self) -> Best | None:
        """The usable cell with the largest change of the target, either way; the first of equals."""
        zero = self.baseline.figures[self.target].value
        found = [
            Best(curve.layers, cell.scale, cell.figures[self.target].value - zero)
            for curve in self.curves
            for cell in curve.cells
            if cell.scale != 0 and cell.scale in curve.usable
        ]
        return max(found, key=lambda one: abs(one.change), default=None)
