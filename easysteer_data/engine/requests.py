"""Which rows of a step are wanted: the tagged requests that are running, and what was taken of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.wire import RequestTag
from easysteer_data.select import SelectSpec


@dataclass(slots=True)
class _Request:
    """A request being recorded; `n_seen` positions were taken, so recomputed ones are not taken again."""

    prompt: int
    prompt_token_ids: np.ndarray
    select: SelectSpec | None
    last_only: bool
    n_seen: int = 0

    def wanted(self, start: int, count: int) -> np.ndarray | range:
        """Positions of this step's tokens whose rows are wanted and not taken yet."""
        positions = self._selected(max(start, self.n_seen), start + count)
        self.n_seen = max(self.n_seen, start + count)
        # A prompt's last row is the last one of some step; the proof finds out of which.
        return positions[-1:] if self.last_only else positions

    def _selected(self, first: int, stop: int) -> np.ndarray | range:
        select, n_prompt = self.select, len(self.prompt_token_ids)
        if select is None or first >= stop:
            return range(first, stop)
        if first >= n_prompt and select.whole_generation is not None:
            return range(first, stop if select.whole_generation else first)
        known = self.prompt_token_ids[first:stop]
        # Generated tokens may not be known on the host when the step is prepared: -1 selects more, not less.
        tokens = np.pad(known, (0, stop - first - len(known)), constant_values=-1)
        return np.flatnonzero(select.candidates(n_prompt, first, tokens)) + first


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The wanted rows of one step, in batch order.

    Attributes:
        prompt: int32 [n], index of the prompt.
        position: int32 [n], absolute position of the row's token.
        token: int64 [n], the token's place in the flat batch.
        generated: bool [n], whether the token was generated.
    """

    prompt: np.ndarray
    position: np.ndarray
    token: np.ndarray
    generated: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt)


@dataclass(slots=True)
class RunningRequests:
    """The tagged requests that the engine is running."""

    last_only: bool = False
    _requests: dict[str, _Request] = field(default_factory=dict)
    _selects: dict[str, SelectSpec] = field(default_factory=dict)

    def note(self, scheduler_output: Any) -> None:
        """Note the requests that start and end with a step."""
        for req_id in scheduler_output.finished_req_ids:
            self._requests.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            tag = RequestTag.of(new.sampling_params)
            # A preempted request of the V2 runner comes back as a new one: what was taken stays taken.
            if tag is not None and new.req_id not in self._requests:
                select = self._select(tag.select)
                tokens = np.asarray(new.prompt_token_ids, dtype=np.int64)
                self._requests[new.req_id] = _Request(tag.prompt, tokens, select, self.last_only)

    def _select(self, wire: Mapping[str, Any] | None) -> SelectSpec | None:
        """The spec of a wire form; one that many requests share is checked once."""
        if wire is None:
            return None
        key = repr(wire)
        if key not in self._selects:
            self._selects[key] = SelectSpec.from_wire(wire)
        return self._selects[key]

    def wanted(self, geometry: StepGeometry) -> WantedRows:
        """The rows of a step that are wanted now and count as taken from now on."""
        prompts, lengths, counts, shifts = [], [], [], []
        positions: list[int] = []
        first_token = 0
        for req_id, start, count in zip(
            geometry.req_ids, geometry.starts.tolist(), geometry.counts.tolist(), strict=True
        ):
            request = self._requests.get(req_id)
            if request is not None and len(wanted := request.wanted(start, count)):
                prompts.append(request.prompt)
                lengths.append(len(request.prompt_token_ids))
                counts.append(len(wanted))
                shifts.append(first_token - start)
                positions.extend(wanted)
            first_token += count
        position = np.array(positions, dtype=np.int64)
        prompt, length, shift = (
            np.repeat(np.array(values, dtype=np.int64), np.array(counts, dtype=np.int64))
            for values in (prompts, lengths, shifts)
        )
        return WantedRows(
            prompt.astype(np.int32), position.astype(np.int32), position + shift, position >= length
        )
