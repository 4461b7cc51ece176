"""Which rows of a step are wanted: batches that only generate are not looked at request by request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.requests import RunningRequests, WantedRows
from easysteer_data.engine.wire import RequestTag
from easysteer_data.select import SelectSpec

SELECTS = [
    None,
    {"generation": "all"},
    {"prompt": "all", "generation": "all"},
    {"prompt_positions": [0, -1]},
    {"generation_positions": [1, 2]},
]


def new_request(req_id: str, prompt: int, n_prompt: int, select: Any) -> Any:
    wire = None if select is None else SelectSpec(**select).to_wire()
    params = SimpleNamespace(extra_args=RequestTag(prompt, wire).to_extra_args(), max_tokens=7)
    return SimpleNamespace(req_id=req_id, sampling_params=params, prompt_token_ids=[3] * n_prompt)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    select=st.sampled_from(SELECTS),
    untagged=st.booleans(),
    n_batches=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=120, deadline=None)
def test_any_schedule_gives_each_wanted_row_once(
    lengths: list[int], select: Any, untagged: bool, n_batches: int, seed: int
) -> None:
    """Requests come, go, are cut in chunks, and are preempted and computed again.

    A pipeline runs a few batches of them in turn, and now and then a request moves to another one.
    """
    rng = np.random.default_rng(seed)
    running = RunningRequests()
    starts = dict.fromkeys(range(len(lengths)), 0)
    stops = {i: n + 6 for i, n in enumerate(lengths)}
    got: dict[int, list[int]] = {i: [] for i in starts}
    noted: set[int] = set()
    seen = dict.fromkeys(starts, 0)
    finished: list[str] = []
    step, moved = 0, 0
    while starts:
        step, moved = step + 1, moved + int(rng.random() < 0.1)
        ours = [i for i in starts if (i + (moved if i % 2 else 0)) % n_batches == step % n_batches]
        chosen = [i for i in ours if i in noted or rng.random() < 0.5]
        if untagged and rng.random() < 0.3:
            chosen.append(-1)  # somebody else's request, of which nothing was noted
        new = [new_request(str(i), i, lengths[i], select) for i in chosen if i >= 0 and i not in noted]
        running.note(SimpleNamespace(finished_req_ids=finished, scheduled_new_reqs=new))
        noted |= {i for i in chosen if i >= 0}
        counts = [
            1 if i < 0 or starts[i] >= lengths[i] else int(rng.integers(1, lengths[i] - starts[i] + 1))
            for i in chosen
        ]
        begins = [starts.get(i, 9) for i in chosen]
        wanted = running.wanted(
            StepGeometry(
                [str(i) for i in chosen],
                np.array(begins, dtype=np.int64),
                np.array(counts, dtype=np.int64),
                torch.empty(0),
            )
        )
        for i, begin, n in zip(chosen, begins, counts, strict=True):
            seen[i] = max(seen.get(i, 0), begin + n)
        left = [max(0, stops[i] - seen[i]) for i in chosen if i >= 0]
        assert wanted.n_left == min(left, default=2**31)
        owner = np.repeat(np.array(chosen, dtype=np.int64), counts)
        ranges = [np.arange(b, b + n) for b, n in zip(begins, counts, strict=True)]
        position = np.concatenate([np.empty(0, dtype=np.int64), *ranges])
        assert owner[wanted.token].tolist() == wanted.prompt.tolist()
        assert position[wanted.token].tolist() == wanted.position.tolist()
        for prompt, where, generated in zip(
            wanted.prompt.tolist(), wanted.position.tolist(), wanted.generated.tolist(), strict=True
        ):
            got[prompt].append(where)
            assert generated == (where >= lengths[prompt])
        finished = []
        for i, n in zip(chosen, counts, strict=True):
            if i < 0:
                continue
            starts[i] += n
            if rng.random() < 0.1:
                starts[i] = 0  # preempted
            elif starts[i] >= stops[i]:
                del starts[i]
                finished.append(str(i))
    for i, rows in got.items():
        tokens = np.full(stops[i], 3)
        spec = None if select is None else SelectSpec(**select)
        mask = np.ones(stops[i], dtype=bool) if spec is None else spec.mask(lengths[i], 0, tokens)
        assert rows == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("n_batches", [1, 2, 3])
def test_batches_that_take_turns_are_looked_at_request_by_request_once(
    n_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looked_at = 0
    whole = RunningRequests._looked_up

    def counted(self: RunningRequests, geometry: StepGeometry) -> WantedRows:
        nonlocal n_looked_at
        n_looked_at += 1
        return whole(self, geometry)

    monkeypatch.setattr(RunningRequests, "_looked_up", counted)
    running = RunningRequests()
    new = [new_request(str(i), i, 2, {"generation": "all"}) for i in range(6)]
    running.note(SimpleNamespace(finished_req_ids=[], scheduled_new_reqs=new))
    for position in range(7):
        for batch in range(n_batches):
            ids = [str(i) for i in range(batch, 6, n_batches)]
            starts = np.full(len(ids), position, dtype=np.int64)
            running.wanted(StepGeometry(ids, starts, np.ones(len(ids), dtype=np.int64), torch.empty(0)))
    n_in_prompt = 2  # whose rows are not wanted; the third step is the first of generated tokens
    assert n_looked_at == (n_in_prompt + 1) * n_batches
