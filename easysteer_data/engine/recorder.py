"""The worker's side of a capture: decides the wanted rows of each step, and takes them after the forward.

Runs inside vLLM's worker. An error of ours never breaks the engine's step: it is kept for the driver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.lane import Lane
from easysteer_data.engine.outlet import OpenBlock, Outlet, StepRows
from easysteer_data.engine.ranks import part_of_rank
from easysteer_data.engine.requests import RunningRequests, WantedRows
from easysteer_data.engine.slots import StepSlots
from easysteer_data.engine.spool import put
from easysteer_data.engine.sums import RunningSums
from easysteer_data.engine.taps import TapGroup
from easysteer_data.engine.wire import StartOrder, StreamShape
from easysteer_data.errors import EngineError
from easysteer_data.types import Stream


@dataclass(frozen=True, slots=True)
class _Step:
    """The step in flight.

    Attributes:
        wanted: its wanted rows.
        first_slot: their first slot.
        blocks: where they will go, None where there is no room yet.
        copied: streams and places of the layers whose values are on their way.
    """

    wanted: WantedRows
    first_slot: int
    blocks: tuple[OpenBlock, ...] | None
    copied: set[tuple[Stream, int]] = field(default_factory=set)


class Recorder:
    """Records the rows of tagged requests between `start` and `stop`.

    Args:
        groups: the taps of each stream.
        slots: the slot map that the taps read.
        lane: the way from the device to the driver.
        tensor_rank: the worker's tensor-parallel rank; only the first hands over what all ranks have alike.
    """

    def __init__(
        self, groups: Mapping[Stream, TapGroup], slots: StepSlots, lane: Lane, tensor_rank: int = 0
    ) -> None:
        self._groups = groups
        self._slots = slots
        self._lane = lane
        self._tensor_rank = tensor_rank
        self._outlet = Outlet(lane)
        self._order: StartOrder | None = None
        self._part: Mapping[Stream, StreamShape] = {}
        self._requests = RunningRequests()
        self._step: _Step | None = None
        self._sums = RunningSums()
        self._n_rows = 0
        self._error: str | None = None

    @property
    def recording(self) -> bool:
        """Whether a capture is on."""
        return self._order is not None

    def start(self, order: StartOrder, rank: int) -> None:
        """Switch on the taps of those ordered layers that this rank hands over, and open its mailbox."""
        self.stop()
        tapped = {stream: (group.layer_ids, group.width) for stream, group in self._groups.items()}
        self._part = part_of_rank(order, tapped, self._tensor_rank)
        for stream, shape in self._part.items():
            self._groups[stream].switch_on(shape.layer_ids)
            self._groups[stream].listen(shape.layer_ids, partial(self._layer_done, stream))
        self._outlet.open(
            order.mailbox(rank),
            order.mailbox_bytes,
            BlockShape.of(self._part),
            order.block_rows,
            order.block_prompts,
        )
        self._requests = RunningRequests(order.reduce == "last")
        self._order = order

    def stop(self) -> None:
        """Switch everything off and forget what was not fetched."""
        for group in self._groups.values():
            group.switch_off()
        self._slots.clear()
        self._lane.drain()
        self._order, self._step, self._error, self._n_rows = None, None, None, 0
        self._sums.take()
        self._requests = RunningRequests()

    def fetch(self, rank: int) -> dict[str, Any]:
        """Hand over what does not go through the mailbox.

        Returns:
            {"sums": one or None, "error": text or None}; sums as an object, or as the path of a file where
            there is a spool.
        """
        sums = self._sums.take()
        spool = None if self._order is None else self._order.spool
        if sums is None or spool is None:
            return {"sums": sums, "error": self._error}
        if not Path(spool).is_dir():  # the driver was interrupted while it asked
            return {"sums": None, "error": "the driver has gone"}
        return {"sums": put(sums.to_tensors(), spool, rank), "error": self._error}

    def begin_step(self, scheduler_output: Any) -> None:
        """Note the requests that start and end with this step."""
        self._guard(lambda: self._requests.note(scheduler_output))

    def place_rows(self, geometry: Callable[[], StepGeometry]) -> None:
        """Give each wanted token of the step a slot, before the forward pass."""
        step, self._step = self._step, None
        if step is not None and step.blocks is not None:  # it never ran
            self._outlet.cancel(step.blocks)
        self._guard(lambda: self._place(geometry()))

    def end_step(self) -> None:
        """Take the step's rows out of the buffers, after the forward pass."""
        step, self._step = self._step, None
        if step is not None:
            self._guard(lambda: self._take(step))

    def _guard(self, action: Callable[[], None]) -> None:
        if not self.recording or self._error is not None:
            return
        try:
            action()
        except EngineError as error:
            self._error = str(error)
        except Exception:  # raised again in the driver by its next fetch
            self._error = traceback.format_exc()
        if self._error is not None:
            self._outlet.fail()

    def _place(self, geometry: StepGeometry) -> None:
        wanted = self._requests.wanted(geometry)
        self._spend(len(wanted))
        first_slot = self._slots.place(wanted.token, geometry.input_ids)
        if len(wanted):
            # Sums take the values from the buffers; there is nothing to copy before the step ends.
            early = self._order is not None and self._order.reduce != "mean"
            blocks = self._outlet.reserve(wanted.prompt) if early else None
            self._step = _Step(wanted, first_slot, blocks)

    def _layer_done(self, stream: Stream, place: int) -> None:
        """Copy a layer's rows while the next layers run."""
        if self._step is not None and self._step.blocks is not None:
            self._guard(partial(self._copy_layer, self._step, self._step.blocks, stream, place))

    def _copy_layer(self, step: _Step, blocks: tuple[OpenBlock, ...], stream: Stream, place: int) -> None:
        values = self._groups[stream].rows_at(step.first_slot, len(step.wanted))[place]
        with self._lane.copying(self._slots.buffer_of(step.first_slot)):
            self._outlet.put_layer(blocks, stream, place, values)
        step.copied.add((stream, place))

    def _spend(self, n_rows: int) -> None:
        self._n_rows += n_rows
        budget = None if self._order is None else self._order.budget_rows
        if budget is not None and self._n_rows > budget:
            raise EngineError(
                f"budget_rows={budget} is used up: {self._n_rows} rows of each layer are wanted so far; "
                "select fewer rows, run fewer prompts, or raise the budget"
            )

    def _take(self, step: _Step) -> None:
        wanted, first, n_rows = step.wanted, step.first_slot, len(step.wanted)
        rows = StepRows(
            wanted.prompt,
            wanted.position,
            self._slots.token_ids(first, n_rows),
            {stream: self._groups[stream].peaks_at(first, n_rows) for stream in self._part},
            {stream: self._groups[stream].rows_at(first, n_rows) for stream in self._part},
        )
        if self._order is not None and self._order.reduce == "mean":
            self._sum_prompt_rows(rows, wanted.generated)
        with self._lane.copying(self._slots.buffer_of(first)):
            if step.blocks is None:
                self._put(rows, wanted.generated)
            else:
                self._outlet.publish(step.blocks, rows, self._streams_left(step))
            # A row that a later step fails to write keeps this NaN and is refused by the proof.
            for peaks in rows.peaks.values():
                peaks.fill_(torch.nan)

    def _streams_left(self, step: _Step) -> list[Stream]:
        """Streams of which not every layer was copied during the forward pass, as where graphs replay it."""
        return [
            stream
            for stream, shape in self._part.items()
            if not all((stream, place) in step.copied for place in range(len(shape.layer_ids)))
        ]

    def _sum_prompt_rows(self, rows: StepRows, generated: np.ndarray) -> None:
        in_prompt = np.flatnonzero(~generated)
        if len(in_prompt):
            chosen = rows.at(in_prompt)
            self._sums.add(chosen.prompt, chosen.values)

    def _put(self, rows: StepRows, generated: np.ndarray) -> None:
        if self._order is None or self._order.reduce != "mean":
            self._outlet.put(rows)
            return
        # Rows of generated tokens are kept one by one: the engine may run past a request's end, and only the
        # proof knows its tokens. The prompt's rows, known from the start, are added up.
        self._outlet.put(rows.at(np.flatnonzero(~generated)), has_values=False)
        self._outlet.put(rows.at(np.flatnonzero(generated)))
