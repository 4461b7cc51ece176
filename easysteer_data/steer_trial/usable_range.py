"""Which scales of a curve are of use: the target rises, the text stays readable. Knows figures alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from easysteer_data.steer_trial.result import Cell, Limits, ScaleRange

Allowed = Callable[[Cell, Cell], bool]
"""Whether a cell may follow its neighbour on the side of 0."""


def rising_range(cells: Sequence[Cell], target: str) -> ScaleRange:
    """Around 0, the scales over which the target score rises strictly from each to the next.

    Args:
        cells: ascending by scale, one of them at 0.
        target: the score's name.
    """
    return _range_around_0(cells, lambda cell, inner: _rises(cell, inner, target))


def usable_range(cells: Sequence[Cell], target: str | None, limits: Limits) -> ScaleRange:
    """Around 0, the scales that keep to the limits, and over which the target score rises.

    Args:
        cells: as above.
        target: the score's name, None = it need not rise.
        limits: a score that no cell has sets no limit.
    """
    baseline = next(cell for cell in cells if cell.scale == 0)

    def allowed(cell: Cell, inner: Cell) -> bool:
        return _keeps_to(cell, baseline, limits) and (target is None or _rises(cell, inner, target))

    return _range_around_0(cells, allowed)


def _range_around_0(cells: Sequence[Cell], allowed: Allowed) -> ScaleRange:
    zero = next(place for place, cell in enumerate(cells) if cell.scale == 0)
    first = last = zero
    while first > 0 and allowed(cells[first - 1], cells[first]):
        first -= 1
    while last < len(cells) - 1 and allowed(cells[last + 1], cells[last]):
        last += 1
    return ScaleRange(cells[first].scale, cells[last].scale, last - first + 1)


def _rises(cell: Cell, inner: Cell, target: str) -> bool:
    change = cell.figures[target].value - inner.figures[target].value
    return change > 0 if cell.scale > 0 else change < 0


def _keeps_to(cell: Cell, baseline: Cell, limits: Limits) -> bool:
    perplexity, repetition = cell.figures.get("perplexity"), cell.figures.get("repetition")
    if perplexity and perplexity.value > limits.perplexity_ratio * baseline.figures["perplexity"].value:
        return False
    return repetition is None or repetition.value <= limits.repetition
