"""Which rows of a step are wanted: the tagged requests that are running, and what was taken of each."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.wire import RequestTag
from easysteer_data.select import SelectSpec

_MANY = 2**31


@dataclass(slots=True)
class _Request:
    """A request being recorded; `n_seen` positions were taken, so recomputed ones are not taken again.

    Of a completion of full length the model reads `n_positions`; it may end earlier.
    """

    prompt: int
    prompt_token_ids: np.ndarray
    select: SelectSpec | None
    last_only: bool
    n_positions: int
    n_seen: int = 0

    @property
    def n_left(self) -> int:
        """How many tokens the model may still read."""
        return max(0, self.n_positions - self.n_seen)

    def wanted(self, start: int, count: int) -> np.ndarray | range:
        """Positions of this step's tokens whose rows are wanted and not taken yet."""
        positions = self._selected(max(start, self.n_seen), start + count)
        self.n_seen = max(self.n_seen, start + count)
        # A prompt's last row is the last one of some step; the proof finds out of which.
        return positions[-1:] if self.last_only else positions

    @property
    def whole_generation(self) -> bool | None:
        """Whether every generated token's row is wanted, or none is, whatever the token; None if neither."""
        return True if self.select is None else self.select.whole_generation

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
        n_left: fewest tokens that a tagged request of the step may still read behind it; 0 where one runs for
            the last time, as far as that is known beforehand.
    """

    prompt: np.ndarray
    position: np.ndarray
    token: np.ndarray
    generated: np.ndarray
    n_left: int = _MANY

    def __len__(self) -> int:
        return len(self.prompt)


@dataclass(slots=True)
class _SteadyBatch:
    """A batch that generates one token a request, of requests of which every generated row is wanted or none.

    Steps of the same batch differ only in `starts`, so that no request need be looked at.
    """

    req_ids: list[str]
    requests: list[_Request]
    n_positions: np.ndarray
    prompt: np.ndarray
    token: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, geometry: StepGeometry, requests: Mapping[str, _Request]) -> _SteadyBatch | None:
        """What follows this step if no request comes or goes; None where requests must be looked at."""
        if not len(geometry.counts) or (geometry.counts != 1).any():
            return None
        found = [requests.get(req_id) for req_id in geometry.req_ids]
        running = [request for request in found if request is not None]
        if len(running) < len(found) or any(r.whole_generation is None for r in running):
            return None
        if (geometry.starts < [len(request.prompt_token_ids) for request in running]).any():
            return None
        # A preempted request computes tokens again that it has seen already.
        if (geometry.starts + 1 != [request.n_seen for request in running]).any():
            return None
        prompt = np.array([request.prompt for request in running], dtype=np.int32)
        token = np.flatnonzero([request.whole_generation is True for request in running])
        n_positions = np.array([request.n_positions for request in running])
        return cls(list(geometry.req_ids), running, n_positions, prompt[token], token, geometry.starts)

    def wanted(self, geometry: StepGeometry) -> WantedRows | None:
        """The rows of a step; None where it is not one of this batch, or repeats a token."""
        if geometry.req_ids != self.req_ids or (geometry.counts != 1).any():
            return None
        if (geometry.starts <= self.starts).any():
            return None
        self.starts = geometry.starts
        position = geometry.starts[self.token].astype(np.int32)
        n_left = max(0, int((self.n_positions - geometry.starts).min()) - 1)
        return WantedRows(self.prompt, position, self.token, np.ones(len(position), dtype=bool), n_left)

    def note_seen(self) -> None:
        """Tell the requests what was taken of them."""
        for request, start in zip(self.requests, self.starts.tolist(), strict=True):
            request.n_seen = max(request.n_seen, start + 1)


@dataclass(slots=True)
class RunningRequests:
    """The tagged requests that the engine is running."""

    last_only: bool = False
    _requests: dict[str, _Request] = field(default_factory=dict)
    _selects: dict[str, SelectSpec] = field(default_factory=dict)
    # A pipeline runs a few batches in turn, of different requests.
    _steady: list[_SteadyBatch] = field(default_factory=list)

    def note(self, scheduler_output: Any) -> bool:
        """Note the requests that start with a step or ended before it; return whether a tagged one ended."""
        self._forget_batches(set(scheduler_output.finished_req_ids))
        ended = [self._requests.pop(req_id, None) for req_id in scheduler_output.finished_req_ids]
        for new in scheduler_output.scheduled_new_reqs:
            tag = RequestTag.of(new.sampling_params)
            # A preempted request of the V2 runner comes back as a new one: what was taken stays taken.
            if tag is not None and new.req_id not in self._requests:
                select = self._select(tag.select)
                tokens = np.asarray(new.prompt_token_ids, dtype=np.int64)
                # The last token of a completion is never read.
                n_positions = len(tokens) + new.sampling_params.max_tokens - 1
                self._requests[new.req_id] = _Request(tag.prompt, tokens, select, self.last_only, n_positions)
        return any(request is not None for request in ended)

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
        for steady in self._steady:
            same = steady.wanted(geometry)
            if same is not None:
                return same
        self._forget_batches(set(geometry.req_ids))
        wanted = self._looked_up(geometry)
        found = _SteadyBatch.of(geometry, self._requests)
        if found is not None:
            self._steady.append(found)
        return wanted

    def _forget_batches(self, req_ids: Set[str]) -> None:
        """Look at requests one by one again: these, and those that were in a batch with one of them."""
        kept = []
        for steady in self._steady:
            if req_ids.isdisjoint(steady.req_ids):
                kept.append(steady)
            else:
                steady.note_seen()
        self._steady = kept

    def _looked_up(self, geometry: StepGeometry) -> WantedRows:
        prompts, lengths, counts, shifts = [], [], [], []
        positions: list[int] = []
        first_token, n_left = 0, _MANY
        for req_id, start, count in zip(
            geometry.req_ids, geometry.starts.tolist(), geometry.counts.tolist(), strict=True
        ):
            request = self._requests.get(req_id)
            if request is not None:
                wanted = request.wanted(start, count)
                n_left = min(n_left, request.n_left)
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
            prompt.astype(np.int32), position.astype(np.int32), position + shift, position >= length, n_left
        )
