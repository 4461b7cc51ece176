"""The worker's side of a capture: decides the wanted rows of each step, and takes them after the forward.

Runs inside vLLM's worker. An error of ours never breaks the engine's step: it is kept for the driver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.spool import put
from easysteer_data.engine.sums import RunningSums
from easysteer_data.engine.taps import TapGroup
from easysteer_data.engine.wire import DTYPES, SPLIT_STREAMS, Chunk, RequestTag, StartOrder
from easysteer_data.errors import EngineError
from easysteer_data.select import SelectSpec
from easysteer_data.types import Stream


@dataclass(slots=True)
class _Request:
    """A request being recorded; `n_seen` positions were taken, so recomputed ones are not taken again."""

    prompt: int
    prompt_token_ids: np.ndarray
    select: SelectSpec | None
    last_only: bool
    n_seen: int = 0

    def wanted(self, start: int, count: int) -> np.ndarray:
        """Offsets into this step's tokens of the request whose rows are wanted and not taken yet."""
        offsets = self._selected(start, count)
        # A prompt's last row is the last one of some step; the proof finds out of which.
        return offsets[-1:] if self.last_only else offsets

    def _selected(self, start: int, count: int) -> np.ndarray:
        first = max(start, self.n_seen)
        stop = start + count
        self.n_seen = max(self.n_seen, stop)
        if first >= stop:
            return np.empty(0, dtype=np.int64)
        if self.select is None:
            return np.arange(first - start, count)
        known = self.prompt_token_ids[first:stop]
        # Generated tokens may not be known on the host when the step is prepared: -1 selects more, not less.
        tokens = np.pad(known, (0, stop - first - len(known)), constant_values=-1)
        mask = self.select.candidates(len(self.prompt_token_ids), first, tokens)
        return np.flatnonzero(mask) + (first - start)


@dataclass(slots=True)
class _Wanted:
    """The rows of the step in flight, in slot order."""

    prompt: np.ndarray
    position: np.ndarray
    token_id: torch.Tensor
    generated: np.ndarray
    """bool [n], whether the row's token was generated."""


class Recorder:
    """Records the rows of tagged requests between `start` and `stop`.

    Args:
        groups: the taps of each stream.
        slot_map: int32 [max_num_batched_tokens], each token's row in the taps' buffers, -1 = not wanted.
        tensor_rank: the worker's tensor-parallel rank; only the first hands over what all ranks have alike.
    """

    def __init__(
        self, groups: Mapping[Stream, TapGroup], slot_map: torch.Tensor, tensor_rank: int = 0
    ) -> None:
        self._groups = groups
        self._tensor_rank = tensor_rank
        self._slot_map = slot_map
        self._order: StartOrder | None = None
        self._places: dict[Stream, torch.Tensor] = {}
        self._requests: dict[str, _Request] = {}
        self._wanted: _Wanted | None = None
        self._chunks: list[Chunk] = []
        self._sums = RunningSums()
        self._n_rows = 0
        self._error: str | None = None

    @property
    def recording(self) -> bool:
        """Whether a capture is on."""
        return self._order is not None

    def start(self, order: StartOrder) -> None:
        """Switch on the taps of the ordered layers."""
        self.stop()
        self._places = {
            stream: self._groups[stream].switch_on(layer_ids)
            for stream, layer_ids in order.layers.items()
            if self._tensor_rank == 0 or stream in SPLIT_STREAMS
        }
        self._order = order

    def stop(self) -> None:
        """Switch everything off and forget what was not fetched."""
        for group in self._groups.values():
            group.switch_off()
        self._slot_map.fill_(-1)
        self._order, self._wanted, self._error, self._n_rows = None, None, None, 0
        self._sums.take()
        self._requests.clear()
        self._chunks.clear()

    def fetch(self, rank: int) -> dict[str, Any]:
        """Hand over the chunks since the last fetch: as objects, or as paths where there is a spool.

        Returns:
            {"chunks": list, "sums": one or None, "error": text or None}.
        """
        chunks, self._chunks = self._chunks, []
        sums = self._sums.take()
        spool = None if self._order is None else self._order.spool
        if spool is None:
            return {"chunks": chunks, "sums": sums, "error": self._error}
        if not Path(spool).is_dir():  # the driver was interrupted while it asked
            return {"chunks": [], "sums": None, "error": "the driver has gone"}
        return {
            "chunks": [put(chunk.to_tensors(), spool, rank) for chunk in chunks],
            "sums": None if sums is None else put(sums.to_tensors(), spool, rank),
            "error": self._error,
        }

    def begin_step(self, scheduler_output: Any) -> None:
        """Note the requests that start and end with this step."""
        self._guard(lambda: self._note_requests(scheduler_output))

    def place_rows(self, geometry: Callable[[], StepGeometry]) -> None:
        """Give each wanted token of the step a slot, before the forward pass."""
        self._wanted = None
        self._guard(lambda: self._fill_slots(geometry()))

    def end_step(self) -> None:
        """Take the step's rows out of the buffers, after the forward pass."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._guard(lambda: self._take_rows(wanted))

    def _guard(self, action: Callable[[], None]) -> None:
        if not self.recording or self._error is not None:
            return
        try:
            action()
        except EngineError as error:
            self._error = str(error)
        except Exception:  # raised again in the driver by its next fetch
            self._error = traceback.format_exc()

    def _note_requests(self, scheduler_output: Any) -> None:
        last_only = self._order is not None and self._order.reduce == "last"
        for req_id in scheduler_output.finished_req_ids:
            self._requests.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            tag = RequestTag.of(new.sampling_params)
            # A preempted request of the V2 runner comes back as a new one: what was taken stays taken.
            if tag is not None and new.req_id not in self._requests:
                select = None if tag.select is None else SelectSpec.from_wire(tag.select)
                tokens = np.asarray(new.prompt_token_ids, dtype=np.int64)
                self._requests[new.req_id] = _Request(tag.prompt, tokens, select, last_only)

    def _fill_slots(self, geometry: StepGeometry) -> None:
        prompts, positions, offsets, generated = [], [], [], []
        first_token = 0
        for req_id, start, count in zip(geometry.req_ids, geometry.starts, geometry.counts, strict=True):
            request = self._requests.get(req_id)
            if request is not None:
                wanted = request.wanted(int(start), int(count))
                prompts.append(np.full(len(wanted), request.prompt, dtype=np.int32))
                positions.append((wanted + start).astype(np.int32))
                offsets.append(wanted + first_token)
                generated.append(wanted + start >= len(request.prompt_token_ids))
            first_token += int(count)
        tokens = torch.from_numpy(np.concatenate(offsets)) if offsets else torch.empty(0, dtype=torch.int64)
        self._slot_map.fill_(-1)
        n_rows = tokens.shape[0]
        if n_rows == 0:
            return
        self._spend(n_rows)
        self._slot_map[tokens] = torch.arange(n_rows, dtype=torch.int32, device=self._slot_map.device)
        for stream, places in self._places.items():
            # A row that the forward pass fails to write keeps this NaN and is refused by the proof.
            self._groups[stream].rows[places, :n_rows, 0] = torch.nan
        token_id = geometry.input_ids[tokens].to("cpu", torch.int32)
        self._wanted = _Wanted(
            np.concatenate(prompts), np.concatenate(positions), token_id, np.concatenate(generated)
        )

    def _spend(self, n_rows: int) -> None:
        self._n_rows += n_rows
        budget = None if self._order is None else self._order.budget_rows
        if budget is not None and self._n_rows > budget:
            raise EngineError(
                f"budget_rows={budget} is used up: {self._n_rows} rows of each layer are wanted so far; "
                "select fewer rows, run fewer prompts, or raise the budget"
            )

    def _take_rows(self, wanted: _Wanted) -> None:
        order = self._order
        if order is None:
            return
        n_rows = len(wanted.prompt)
        # A copy: the taps write over the buffer.
        rows = {s: self._groups[s].rows[places, :n_rows] for s, places in self._places.items()}
        if order.reduce != "mean":
            self._keep(wanted, rows, np.ones(n_rows, dtype=bool))
            return
        # Rows of generated tokens are kept one by one: the engine may run past a request's end, and only the
        # proof knows its tokens. The prompt's rows, known from the start, are added up.
        in_prompt = ~wanted.generated
        if in_prompt.any():
            index = torch.from_numpy(np.flatnonzero(in_prompt))
            self._sums.add(wanted.prompt[in_prompt], {s: value[:, index] for s, value in rows.items()})
            self._keep(wanted, rows, in_prompt, values=False)
        if wanted.generated.any():
            self._keep(wanted, rows, wanted.generated)

    def _keep(
        self, wanted: _Wanted, rows: Mapping[Stream, torch.Tensor], mask: np.ndarray, *, values: bool = True
    ) -> None:
        """Keep labels and peaks of the masked rows, and their values where asked."""
        dtypes = {} if self._order is None else self._order.dtypes
        index = torch.from_numpy(np.flatnonzero(mask))
        chosen = {s: value if mask.all() else value[:, index] for s, value in rows.items()}
        peaks = {stream: value.abs().amax(-1).float().cpu() for stream, value in chosen.items()}
        if not values:
            chosen = {s: value.new_empty(value.shape[0], 0, value.shape[2]) for s, value in chosen.items()}
        self._chunks.append(
            Chunk(
                prompt=torch.from_numpy(wanted.prompt)[index],
                position=torch.from_numpy(wanted.position)[index],
                token_id=wanted.token_id[index],
                values={s: value.to("cpu", DTYPES[dtypes[s]]) for s, value in chosen.items()},
                peaks=peaks,
            )
        )
