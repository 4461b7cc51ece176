"""Puts a step's rows into the mailbox, block by block. Knows buffers and bytes; not which rows are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.lane import Lane
from easysteer_data.engine.mailbox import Mailbox
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step, where the taps have put them.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        token_id: int32 [n] on the device, the token that the model read there.
        peaks: stream -> float32 [n, n_layers] on the device, largest absolute value of the row.
        values: stream -> [n, n_layers, width] on the device.
    """

    prompt: np.ndarray
    position: np.ndarray
    token_id: torch.Tensor
    peaks: Mapping[Stream, torch.Tensor]
    values: Mapping[Stream, torch.Tensor]

    def __len__(self) -> int:
        return len(self.prompt)

    def at(self, rows: slice | np.ndarray) -> StepRows:
        """Some of the rows, by place: views of a range, copies of others."""
        chosen = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.token_id.device)
        return StepRows(
            self.prompt[rows],
            self.position[rows],
            self.token_id[chosen],
            {stream: peaks[chosen] for stream, peaks in self.peaks.items()},
            {stream: values[chosen] for stream, values in self.values.items()},
        )


class Outlet:
    """The worker's way out: one mailbox for all captures of an engine."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._mailbox: Mailbox | None = None
        self._shape = BlockShape({})
        self._block_rows = 1

    def open(self, path: Path, n_bytes: int, shape: BlockShape, block_rows: int) -> None:
        """Begin to write into a driver's mailbox.

        Args:
            path: its file; kept open and page-locked for the captures that follow with the same one.
            n_bytes: its size.
            shape: the streams of a block.
            block_rows: rows in one block at most.
        """
        if self._mailbox is None or self._mailbox.path != path:
            if self._mailbox is not None:
                self._lane.unregister(self._mailbox)
            self._mailbox = Mailbox(path, n_bytes)
            self._lane.register(self._mailbox)
        self._shape = shape
        self._block_rows = block_rows

    def put(self, rows: StepRows, *, has_values: bool = True) -> None:
        """Copy rows into boxes; waits for free ones, not for the device."""
        for start in range(0, len(rows), self._block_rows):
            self._put_block(rows.at(slice(start, start + self._block_rows)), has_values)

    def fail(self) -> None:
        """Tell the driver to ask for an error."""
        if self._mailbox is not None:
            self._mailbox.fail()

    def _put_block(self, rows: StepRows, has_values: bool) -> None:
        mailbox = self._mailbox
        if mailbox is None:
            return
        n_bytes = self._shape.n_bytes(len(rows), has_values=has_values)
        box = mailbox.take_box()
        views = self._shape.views(mailbox.box(box, n_bytes), len(rows), has_values=has_values)
        views["prompt"].copy_(torch.from_numpy(rows.prompt))
        views["position"].copy_(torch.from_numpy(rows.position))
        self._lane.copy(views["token_id"], rows.token_id)
        for stream in self._shape.streams:
            self._lane.copy(views[f"peaks.{stream}"], rows.peaks[stream])
            if has_values:
                self._lane.copy(views[f"values.{stream}"], rows.values[stream])
        mailbox.publish(box, n_bytes, len(rows), has_values=has_values)
        self._lane.complete(mailbox, mailbox.n_published)
