"""Rows of a step that is still running: the driver sees a layer's rows before the step has ended.

Their labels say what they will be, nothing proves it yet: whoever uses them early must throw that away
where the proven rows turn out to be others, or to lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.mailbox import Mailbox
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class EarlyRows:
    """One block of a step, where it lies.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        values: stream -> a Tensor [n, width] a layer, layers as ordered; to be read once they have arrived.
        arrived: stream -> int64 [n_layers], 1 where the layer's rows are there.
    """

    prompt: torch.Tensor
    position: torch.Tensor
    values: Mapping[Stream, Sequence[torch.Tensor]]
    arrived: Mapping[Stream, torch.Tensor]

    def has(self, stream: Stream, place: int) -> bool:
        """Whether the rows of the layer at this place are there."""
        return int(self.arrived[stream][place]) == 1


class EarlyLook:
    """Finds the blocks of steps that have begun since the last look."""

    def __init__(self, mailbox: Mailbox, shape: BlockShape) -> None:
        self._mailbox = mailbox
        self._shape = shape
        self._n_seen = 0

    def new(self) -> list[EarlyRows]:
        """The blocks, in the order of their steps."""
        announced = self._mailbox.announced(self._n_seen)
        self._n_seen += len(announced)
        return [self._rows(box, n_rows) for box, n_rows in announced]

    def _rows(self, box: int, n_rows: int) -> EarlyRows:
        n_bytes = self._shape.n_bytes(n_rows, has_values=True)
        views = self._shape.views(self._mailbox.box(box, n_bytes), n_rows, has_values=True)
        # Labels are copied: the memory may be another block's when they are looked at.
        return EarlyRows(
            views["prompt"].clone(),
            views["position"].clone(),
            {stream: list(views[f"values.{stream}"]) for stream in self._shape.streams},
            {stream: views[f"arrived.{stream}"] for stream in self._shape.streams},
        )
