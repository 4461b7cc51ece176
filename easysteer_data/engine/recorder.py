"""The worker's side of a capture: decides the wanted rows of each step, and takes them after the forward.

Runs inside vLLM's worker. An error of ours never breaks the engine's step: it is kept for the driver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from easysteer_data.engine.batch import RowBatch
from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.lane import Lane
from easysteer_data.engine.outlet import OpenBlock, Outlet, StepRows
from easysteer_data.engine.ranks import part_of_rank
from easysteer_data.engine.requests import RunningRequests
from easysteer_data.engine.slots import StepSlots
from easysteer_data.engine.spool import put
from easysteer_data.engine.sums import RunningSums
from easysteer_data.engine.taps import TapGroup
from easysteer_data.engine.wire import StartOrder, StreamShape
from easysteer_data.errors import EngineError
from easysteer_data.types import Stream

# Rows of small steps are kept until they fill a block or are as many as may be, but for so many steps at
# most: the last ones of a request are waited for. A step is small if at least _MIN_STEPS like it fit.
_MAX_STEPS, _MIN_STEPS, _LAST_STEPS = 16, 4, 2


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
        self._step: RowBatch | None = None  # in flight
        self._kept: RowBatch | None = None  # taken, not handed over yet
        self._sums = RunningSums()
        self._n_rows = 0
        self._room = 0  # rows that may be kept
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
            order.mailbox_bytes[rank],
            BlockShape.of(self._part),
            order.block_rows,
            order.groups,
        )
        self._requests = RunningRequests(order.reduce == "last")
        self._room = min(order.block_rows, order.kept_rows, self._slots.max_tokens)
        self._order = order

    def stop(self) -> None:
        """Switch everything off and forget what was not fetched."""
        for group in self._groups.values():
            group.switch_off()
        self._slots.clear()
        self._lane.drain()
        self._order, self._step, self._kept, self._error, self._n_rows = None, None, None, None, 0
        self._sums.take()
        self._requests = RunningRequests()

    def fetch(self, rank: int) -> dict[str, Any]:
        """Hand over the rows that were kept, and what does not go through the mailbox.

        Returns:
            {"sums": one or None, "error": text or None}; sums as an object, or as the path of a file where
            there is a spool.
        """
        self._guard(self._hand_over_kept)
        sums = self._sums.take()
        spool = None if self._order is None else self._order.spool
        if sums is None or spool is None:
            return {"sums": sums, "error": self._error}
        if not Path(spool).is_dir():  # the driver was interrupted while it asked
            return {"sums": None, "error": "the driver has gone"}
        return {"sums": put(sums.to_tensors(), spool, rank), "error": self._error}

    def begin_step(self, scheduler_output: Any) -> None:
        """Note the requests that start and end with this step."""
        self._guard(lambda: self._begin(scheduler_output))

    def place_rows(self, geometry: Callable[[], StepGeometry]) -> None:
        """Give each wanted token of the step a slot, before the forward pass."""
        step, self._step = self._step, None
        if step is not None:  # it never ran
            self._slots.take_back(len(step))
            self._outlet.cancel(step.blocks or ())
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

    def _begin(self, scheduler_output: Any) -> None:
        if self._requests.note(scheduler_output):
            self._hand_over_kept()

    def _place(self, geometry: StepGeometry) -> None:
        wanted = self._requests.wanted(geometry)
        n = len(wanted)
        self._spend(n)
        if not self._fits(n) or (n == 0 and wanted.n_left == 0):
            self._hand_over_kept()
        first_slot = self._slots.place(wanted.token, geometry.input_ids, beside=self._kept is not None)
        if n:
            blocks = self._outlet.reserve(wanted.prompt, wanted.position) if self._goes_early(n) else None
            self._step = RowBatch(first_slot, (wanted,), blocks)

    def _is_small(self, n_rows: int) -> bool:
        return n_rows * _MIN_STEPS <= self._room

    def _fits(self, n_rows: int) -> bool:
        """Whether a step's rows fit beside those that are kept."""
        kept = self._kept
        if kept is None:
            return True
        return self._is_small(n_rows) and len(kept) + n_rows <= self._room and len(kept.steps) < _MAX_STEPS

    def _goes_early(self, n_rows: int) -> bool:
        """Whether a step's layers are copied while later ones run: not where they are summed, or kept."""
        return self._order is not None and self._order.reduce != "mean" and not self._is_small(n_rows)

    def _layer_done(self, stream: Stream, place: int) -> None:
        """Copy a layer's rows while the next layers run."""
        if self._step is not None and self._step.blocks is not None:
            self._guard(partial(self._copy_layer, self._step, self._step.blocks, stream, place))

    def _copy_layer(self, step: RowBatch, blocks: tuple[OpenBlock, ...], stream: Stream, place: int) -> None:
        values = self._groups[stream].rows_at(step.first_slot, len(step))[place]
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

    def _take(self, step: RowBatch) -> None:
        batch = step if self._kept is None else self._kept.followed_by(step)
        if self._goes_now(step, batch):
            self._kept = None
            self._hand_over(batch)
        else:
            self._kept = batch
        self._outlet.keep_back(self._kept is not None)

    def _goes_now(self, step: RowBatch, batch: RowBatch) -> bool:
        """Whether a step's rows, and those kept before it, which are the batch, are not kept any longer."""
        n_left, n_kept = step.steps[-1].n_left, len(batch.steps)
        reduced = self._order is not None and self._order.reduce == "mean"
        if reduced or n_left == 0 or not self._is_small(len(step)):
            return True
        # What the next step would not fit beside goes now, while the engine waits for the device.
        if len(batch) + len(step) > self._room or n_kept == _MAX_STEPS:
            return True
        # The driver waits for what goes at a request's end: most of it goes a little sooner.
        return n_left == _LAST_STEPS and n_kept > 2 * _LAST_STEPS

    def _hand_over_kept(self) -> None:
        batch, self._kept = self._kept, None
        if batch is not None:
            self._hand_over(batch)
            self._outlet.keep_back(False)

    def _hand_over(self, batch: RowBatch) -> None:
        first, n_rows = batch.first_slot, len(batch)
        rows = StepRows(
            batch.prompt,
            batch.position,
            self._slots.token_ids(first, n_rows),
            {stream: self._groups[stream].peaks_at(first, n_rows) for stream in self._part},
            {stream: self._groups[stream].rows_at(first, n_rows) for stream in self._part},
        )
        if self._order is not None and self._order.reduce == "mean":
            self._sum_prompt_rows(rows, batch.generated)
        with self._lane.copying(self._slots.buffer_of(first)):
            if batch.blocks is not None:
                self._outlet.publish(batch.blocks, rows, self._streams_left(batch))
            elif self._lane.sorts and len(batch.steps) > 1:
                by_prompt = np.argsort(batch.prompt, kind="stable")
                self._put(rows.at(by_prompt, self._lane.index(by_prompt)), batch.generated[by_prompt])
            else:
                self._put(rows, batch.generated)
            # A row that a later step fails to write keeps this NaN and is refused by the proof.
            for peaks in rows.peaks.values():
                peaks.fill_(torch.nan)

    def _streams_left(self, step: RowBatch) -> list[Stream]:
        """Streams of which not every layer was copied during the forward pass, as where graphs replay it."""
        return [
            stream
            for stream, shape in self._part.items()
            if not all((stream, place) in step.copied for place in range(len(shape.layer_ids)))
        ]

    def _sum_prompt_rows(self, rows: StepRows, generated: np.ndarray) -> None:
        in_prompt = np.flatnonzero(~generated)
        if len(in_prompt):
            chosen = rows.at(in_prompt, self._lane.index(in_prompt))
            self._sums.add(chosen.prompt, chosen.values)

    def _put(self, rows: StepRows, generated: np.ndarray) -> None:
        if self._order is None or self._order.reduce != "mean":
            self._outlet.put(rows)
            return
        # Rows of generated tokens are kept one by one: the engine may run past a request's end, and only the
        # proof knows its tokens. The prompt's rows, known from the start, are added up.
        for in_prompt in (True, False):
            places = np.flatnonzero(generated != in_prompt)
            self._outlet.put(rows.at(places, self._lane.index(places)), has_values=not in_prompt)
