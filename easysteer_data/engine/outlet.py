"""Puts a step's rows into the mailbox, block by block. Knows buffers and bytes; not which rows are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.lane import Lane
from easysteer_data.engine.mailbox import Mailbox
from easysteer_data.engine.wide import pick_rows
from easysteer_data.engine.wire import Groups
from easysteer_data.errors import EngineError
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step, where the taps have put them.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        token_id: int32 [n] on the device, the token that the model read there.
        peaks: stream -> float32 [n_layers, n] on the device, largest absolute value of the row.
        values: stream -> [n_layers, n, width] on the device.
    """

    prompt: np.ndarray
    position: np.ndarray
    token_id: torch.Tensor
    peaks: Mapping[Stream, torch.Tensor]
    values: Mapping[Stream, torch.Tensor]

    def __len__(self) -> int:
        return len(self.prompt)

    def at(self, rows: slice | np.ndarray, index: torch.Tensor | None = None) -> StepRows:
        """Some rows by place: views of a range, copies of others, which `index` names on the device."""
        chosen = rows if index is None else index
        return StepRows(
            self.prompt[rows],
            self.position[rows],
            self.token_id[chosen],
            {stream: peaks[:, chosen] for stream, peaks in self.peaks.items()},
            {
                stream: values[:, rows] if index is None else pick_rows(values, index)
                for stream, values in self.values.items()
            },
        )


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block that has a box and is not published yet.

    Attributes:
        rows: which of the step's rows it takes.
        box: the box.
        n_bytes: its length.
        has_values: whether the rows' values go there, beside their labels and peaks.
        views: the tensors in the box, see `BlockShape.parts`.
    """

    rows: slice
    box: int
    n_bytes: int
    has_values: bool
    views: Mapping[str, torch.Tensor]


class Outlet:
    """The worker's way out: one mailbox for all captures of an engine."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._mailbox: Mailbox | None = None
        self._shape = BlockShape({})
        self._block_rows = 1
        self._groups: int | np.ndarray | None = None

    def open(
        self,
        path: Path,
        n_bytes: int,
        shape: BlockShape,
        block_rows: int,
        groups: Groups | None = None,
    ) -> None:
        """Begin to write into a driver's mailbox.

        Args:
            path: its file; kept open and page-locked for the captures that follow with the same one.
            n_bytes: its size.
            shape: the streams of a block.
            block_rows: rows in one block at most.
            groups: see StartOrder.
        """
        if self._mailbox is None or self._mailbox.path != path:
            if self._mailbox is not None:
                self._lane.unregister(self._mailbox)
            self._mailbox = Mailbox(path, n_bytes)
            self._lane.register(self._mailbox)
        self._shape = shape
        self._block_rows = block_rows
        self._groups = (
            groups if groups is None or isinstance(groups, int) else np.array(groups, dtype=np.int64)
        )

    def reserve(self, prompt: np.ndarray, position: np.ndarray) -> tuple[OpenBlock, ...] | None:
        """Blocks for rows of these labels, int32 [n], so that values can be copied as they come.

        The driver is told of them, and may look at layers that have come. None where there are not enough
        boxes just now: then `put` waits for them one by one.
        """
        parts = list(cut_rows(prompt, self._block_rows, self._groups))
        boxes = self._opened.take_boxes(len(parts))
        if boxes is None:
            return None
        blocks = tuple(self._open(rows, box, has_values=True) for rows, box in zip(parts, boxes, strict=True))
        for block in blocks:
            self._label(block, prompt[block.rows], position[block.rows])
            for stream in self._shape.streams:
                block.views[f"arrived.{stream}"].zero_()
            self._opened.announce(block.box, block.rows.stop - block.rows.start)
        return blocks

    def cancel(self, blocks: Sequence[OpenBlock]) -> None:
        """Give reserved boxes back, with nothing in them."""
        for block in blocks:
            self._opened.return_box(block.box)

    def put_layer(
        self, blocks: Sequence[OpenBlock], stream: Stream, place: int, values: torch.Tensor
    ) -> None:
        """Copy one layer's rows [n, width] of a step into its blocks."""
        for block in blocks:
            self._lane.copy(block.views[f"values.{stream}"][place], values[block.rows])
            self._lane.copy(block.views[f"arrived.{stream}"][place : place + 1], self._lane.one)

    def publish(self, blocks: Sequence[OpenBlock], rows: StepRows, streams: Sequence[Stream]) -> None:
        """Copy the rest into reserved blocks and announce them.

        Args:
            blocks: of the step.
            rows: the step's rows.
            streams: those whose values are not copied yet.
        """
        for block in blocks:
            self._publish(block, rows.at(block.rows), streams)

    def put(self, rows: StepRows, *, has_values: bool = True) -> None:
        """Copy rows into boxes; waits for free ones, not for the device."""
        for part in cut_rows(rows.prompt, self._block_rows, self._groups):
            block = self._open(part, self._opened.take_box(), has_values=has_values)
            self._publish(block, rows.at(part), tuple(self._shape.streams) if has_values else ())

    def keep_back(self, kept: bool) -> None:
        """Tell the driver whether there are rows that it gets only if it asks, or later."""
        self._opened.keep_back(kept)

    def fail(self) -> None:
        """Tell the driver to ask for an error."""
        if self._mailbox is not None:
            self._mailbox.fail()

    @property
    def _opened(self) -> Mailbox:
        if self._mailbox is None:
            raise EngineError("no mailbox is open")
        return self._mailbox

    def _open(self, rows: slice, box: int, *, has_values: bool) -> OpenBlock:
        n_rows = rows.stop - rows.start
        n_bytes = self._shape.n_bytes(n_rows, has_values=has_values)
        # vLLM prepares a step in inference mode; what is made there can't be written to outside it.
        with torch.inference_mode(mode=False):
            views = self._shape.views(self._opened.box(box, n_bytes), n_rows, has_values=has_values)
        return OpenBlock(rows, box, n_bytes, has_values, views)

    def _label(self, block: OpenBlock, prompt: np.ndarray, position: np.ndarray) -> None:
        block.views["prompt"].copy_(torch.from_numpy(prompt))
        block.views["position"].copy_(torch.from_numpy(position))

    def _publish(self, block: OpenBlock, rows: StepRows, streams: Sequence[Stream]) -> None:
        mailbox, views = self._opened, block.views
        self._label(block, rows.prompt, rows.position)
        self._lane.copy(views["token_id"], rows.token_id)
        for stream in self._shape.streams:
            self._lane.copy(views[f"peaks.{stream}"], rows.peaks[stream])
        for stream in streams:
            self._lane.copy(views[f"values.{stream}"], rows.values[stream])
        mailbox.publish(block.box, block.n_bytes, len(rows), has_values=block.has_values)
        self._lane.complete(mailbox, mailbox.n_published)


def cut_rows(prompts: np.ndarray, max_rows: int, groups: int | np.ndarray | None) -> Iterator[slice]:
    """The rows of each block: as many as fit, or, before that, up to the last that ends a group.

    Args:
        prompts: int [n], prompt of each row.
        max_rows: rows in a block at most.
        groups: prompts in each, or int [n_groups], the first of each, ascending; None = no groups.
    """
    start = 0
    while start < len(prompts):
        stop = min(start + max_rows, len(prompts))
        if stop < len(prompts) and groups is not None:
            near = prompts[start : stop + 1]
            group = near // groups if isinstance(groups, int) else np.searchsorted(groups, near, side="right")
            ends = np.flatnonzero(np.diff(group))
            stop = start + int(ends[-1]) + 1 if len(ends) else stop
        yield slice(start, stop)
        start = stop
