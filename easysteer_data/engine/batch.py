"""Rows that go out together: those of one step, or of a few small ones that lie side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from easysteer_data.engine.outlet import OpenBlock
from easysteer_data.engine.requests import WantedRows
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows in consecutive slots.

    Attributes:
        first_slot: the first one's.
        steps: the wanted rows of each step, in the slots' order.
        blocks: where they will go; None where that is seen to when they go out.
        copied: streams and places of the layers whose values are on their way.
    """

    first_slot: int
    steps: tuple[WantedRows, ...]
    blocks: tuple[OpenBlock, ...] | None = None
    copied: set[tuple[Stream, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(len(step) for step in self.steps)

    @property
    def prompt(self) -> np.ndarray:
        """int32 [n], index of the prompt."""
        return np.concatenate([step.prompt for step in self.steps])

    @property
    def position(self) -> np.ndarray:
        """int32 [n], absolute position of the row's token."""
        return np.concatenate([step.position for step in self.steps])

    @property
    def generated(self) -> np.ndarray:
        """Whether each row's token was generated, bool [n]."""
        return np.concatenate([step.generated for step in self.steps])

    def followed_by(self, later: RowBatch) -> RowBatch:
        """Both, whose slots follow each other."""
        return RowBatch(self.first_slot, self.steps + later.steps)
