"""Rows of a step that is still running: the driver sees a layer's rows before the step has ended.

Their labels say what they will be, nothing proves it yet: whoever uses them early must throw that away
where the proven rows turn out to be others, to lie elsewhere, or to lie in memory that was given to another
block meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.mailbox import Announced, Mailbox
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class EarlyRows:
    """One block of a step, where it lies.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        values: stream -> a Tensor [n, width] a layer, layers as ordered; to be read once they have arrived.
        arrived: stream -> int64 [n_layers], 1 where the layer's rows are there.
        is_current: whether the memory has been this block's all the time.
    """

    prompt: torch.Tensor
    position: torch.Tensor
    values: Mapping[Stream, Sequence[torch.Tensor]]
    arrived: Mapping[Stream, np.ndarray]
    is_current: Callable[[], bool]

    def has(self, stream: Stream, place: int) -> bool:
        """Whether the rows of the layer at this place are there."""
        # In this order: in memory that another block has meanwhile, any word may be a one.
        return int(self.arrived[stream][place]) == 1 and self.is_current()


class EarlyLook:
    """Finds the blocks of steps that have begun since the last look."""

    def __init__(self, mailbox: Mailbox, shape: BlockShape) -> None:
        self._mailbox = mailbox
        self._shape = shape
        self._n_seen = 0

    def new(self) -> list[EarlyRows]:
        """The blocks, in the order of their steps."""
        seen, self._n_seen = self._n_seen, self._mailbox.n_announced
        return [self._rows(announced) for announced in self._mailbox.announced(seen, self._n_seen)]

    def _rows(self, announced: Announced) -> EarlyRows:
        mailbox, box, n_rows = self._mailbox, announced.box, announced.n_rows
        n_bytes = self._shape.n_bytes(n_rows, has_values=True)
        views = self._shape.views(mailbox.box(box, n_bytes), n_rows, has_values=True)
        # Labels are copied: the memory may be another block's when they are looked at.
        return EarlyRows(
            views["prompt"].clone(),
            views["position"].clone(),
            {stream: list(views[f"values.{stream}"]) for stream in self._shape.streams},
            {stream: views[f"arrived.{stream}"].numpy() for stream in self._shape.streams},
            lambda: mailbox.taking(box) == announced.taking,
        )
