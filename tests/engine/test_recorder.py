"""Rows of small steps go out together: when they fill a block, a request ends, or they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.engine.channel import Mailboxes
from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.wire import RequestTag, StartOrder
from tests.engine.made_worker import Worker

MAX_TOKENS = 64  # of a step


class Run:
    """One rank that records layers 0 and 2 of requests with two prompt tokens each."""

    def __init__(
        self, block_rows: int, n_new: int, *, kept_rows: int = MAX_TOKENS, sorts: bool = False
    ) -> None:
        self.worker = Worker((0, 1, 2), 4, 0)
        self.worker.recorder._lane.sorts = sorts
        self.mailboxes = Mailboxes([2**20])
        self.mailbox = self.mailboxes.of_rank[0]
        self.n_new = n_new
        self.n_seen = 0
        order = StartOrder(
            {"hidden_states": (0, 2)},
            {"hidden_states": "float32"},
            str(self.mailboxes.folder),
            self.mailboxes.n_bytes,
            block_rows,
            kept_rows,
        )
        self.worker.recorder.start(order, 0)
        self.shape = self.worker.recorder._outlet._shape

    def step(
        self,
        new: Sequence[int],
        tokens: Sequence[tuple[int, int, int]],
        ended: Sequence[int] = (),
        *,
        fails: bool = False,
    ) -> None:
        """Run tokens (request, first position, count); a row tells its request, position and layer.

        A step that fails is prepared and has no forward pass.
        """
        requests = [
            SimpleNamespace(
                req_id=str(i),
                sampling_params=SimpleNamespace(
                    extra_args=RequestTag(i, None).to_extra_args(), max_tokens=self.n_new
                ),
                prompt_token_ids=[5, 5],
            )
            for i in new
        ]
        recorder = self.worker.recorder
        recorder.begin_step(
            SimpleNamespace(finished_req_ids=[str(i) for i in ended], scheduled_new_reqs=requests)
        )
        if not tokens:
            return
        labels = [(i, first + k) for i, first, n in tokens for k in range(n)]
        geometry = StepGeometry(
            [str(i) for i, _, _ in tokens],
            np.array([first for _, first, _ in tokens]),
            np.array([n for _, _, n in tokens]),
            torch.tensor([100 + i for i, _ in labels], dtype=torch.int32),
        )
        recorder.place_rows(lambda: geometry)
        if fails:
            return
        for layer, module in self.worker.layers.items():
            module(torch.tensor([[1 + layer, i, p] for i, p in labels], dtype=torch.float32))
        recorder.end_step()

    def blocks(self) -> list[list[tuple[int, int]]]:
        """Labels of the rows of each block that came out since; values, tokens and peaks are checked."""
        found = []
        for block in self.mailbox.blocks(self.n_seen):
            self.n_seen += 1
            views = self.shape.views(
                self.mailbox.box(block.box, block.n_bytes), block.n_rows, has_values=True
            )
            labels = list(zip(views["prompt"].tolist(), views["position"].tolist(), strict=True))
            for place, layer in enumerate((0, 2)):
                rows = [[1.0 + layer, float(i), float(p)] for i, p in labels]
                assert views["values.hidden_states"][place].tolist() == rows
                assert views["peaks.hidden_states"][place].tolist() == [max(row) for row in rows]
            assert views["token_id"].tolist() == [100 + i for i, _ in labels]
            self.mailbox.release(block)
            found.append(labels)
        return found


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run(block_rows=MAX_TOKENS, n_new=5)
    yield made
    made.mailboxes.remove()


def generate(run: Run, position: int) -> None:
    """A step of requests 0 and 1."""
    run.step([], [(0, position, 1), (1, position, 1)])


def test_small_steps_wait_for_the_end_that_is_known_beforehand(run: Run) -> None:
    run.step([0, 1], [(0, 0, 2), (1, 0, 2)])
    for position in (2, 3, 4):
        generate(run, position)
        assert run.blocks() == []
        assert run.mailbox.keeps_back
    generate(run, 5)  # 2 prompt tokens and 5 new ones, of which the last is never read
    expected = [(0, 0), (0, 1), (1, 0), (1, 1)] + [(i, p) for p in (2, 3, 4, 5) for i in (0, 1)]
    assert run.blocks() == [expected]
    assert not run.mailbox.keeps_back


def test_a_request_that_ends_early_takes_the_kept_rows_with_it(run: Run) -> None:
    run.step([0, 1], [(0, 0, 2), (1, 0, 2)])
    generate(run, 2)
    assert run.blocks() == []
    run.step([], [(1, 3, 1)], ended=[0])
    assert run.blocks() == [[(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]]
    assert run.mailbox.keeps_back  # the row of this step
    run.step([], [], ended=[1])  # a step without tokens, which tells of the last end
    assert run.blocks() == [[(1, 3)]]
    assert not run.mailbox.keeps_back


def test_kept_rows_come_when_they_are_asked_for(run: Run) -> None:
    run.step([0, 1], [(0, 0, 2), (1, 0, 2)])
    assert run.worker.recorder.fetch(0) == {"sums": None, "error": None}
    assert run.blocks() == [[(0, 0), (0, 1), (1, 0), (1, 1)]]
    assert run.worker.recorder.fetch(0)["error"] is None
    assert run.blocks() == []


def test_a_large_step_goes_out_at_once_behind_what_was_kept(run: Run) -> None:
    run.step([0], [(0, 0, 2)])
    run.step(list(range(1, 21)), [(i, 0, 2) for i in range(1, 21)])
    assert run.blocks() == [[(0, 0), (0, 1)], [(i, p) for i in range(1, 21) for p in (0, 1)]]
    assert not run.mailbox.keeps_back


def test_a_step_that_never_ran_leaves_no_gap(run: Run) -> None:
    run.step([0, 1], [(0, 0, 2), (1, 0, 2)])
    run.step([], [(0, 2, 1)], fails=True)
    generate(run, 3)
    run.step(list(range(2, 22)), [(i, 0, 2) for i in range(2, 22)], fails=True)
    generate(run, 5)
    expected = [(0, 0), (0, 1), (1, 0), (1, 1)] + [(i, p) for p in (3, 5) for i in (0, 1)]
    assert [label for block in run.blocks() for label in block] == expected


def test_sixteen_steps_are_kept_at_most() -> None:
    run = Run(block_rows=MAX_TOKENS, n_new=50)
    run.step([0], [(0, 0, 2)])
    for position in range(2, 17):
        assert run.blocks() == []
        run.step([], [(0, position, 1)])
    assert run.blocks() == [[(0, position) for position in range(17)]]
    run.mailboxes.remove()


def test_most_of_the_rows_go_out_before_the_last_steps_of_a_request() -> None:
    run = Run(block_rows=MAX_TOKENS, n_new=9)
    run.step([0], [(0, 0, 2)])
    for position in range(2, 8):
        assert run.blocks() == []
        run.step([], [(0, position, 1)])
    assert run.blocks() == [[(0, position) for position in range(8)]]
    for position in (8, 9):  # of 2 + 9 tokens the last is never read
        assert run.blocks() == []
        run.step([], [(0, position, 1)])
    assert run.blocks() == [[(0, 8), (0, 9)]]
    run.mailboxes.remove()


def test_no_more_rows_are_kept_than_was_ordered() -> None:
    run = Run(block_rows=MAX_TOKENS, n_new=50, kept_rows=9)
    run.step([0, 1], [(0, 0, 1), (1, 0, 1)])
    for position in (1, 2):
        generate(run, position)
        assert run.blocks() == []
    generate(run, 3)  # 8 rows: two more would be too many
    assert run.blocks() == [[(i, position) for position in range(4) for i in (0, 1)]]
    run.mailboxes.remove()


def test_where_it_costs_next_to_nothing_rows_of_several_steps_go_out_by_prompt() -> None:
    run = Run(block_rows=MAX_TOKENS, n_new=3, sorts=True)
    run.step([0, 1], [(0, 0, 2), (1, 0, 2)])
    for position in (2, 3):
        generate(run, position)
    assert run.blocks() == [[(i, position) for i in (0, 1) for position in range(4)]]
    run.mailboxes.remove()


@given(block_rows=st.sampled_from([1, 3, 8, 64]), seed=st.integers(0, 2**32 - 1), sorts=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_schedule_gives_each_row_once(block_rows: int, seed: int, *, sorts: bool) -> None:
    rng = np.random.default_rng(seed)
    run = Run(block_rows, n_new=int(rng.integers(1, 9)), sorts=sorts)
    positions: dict[int, int] = {}
    ended: list[int] = []
    expected: list[tuple[int, int]] = []
    got: list[Any] = []
    for n_noted in range(int(rng.integers(1, 25))):
        new = [n_noted] if rng.random() < 0.5 else []
        positions |= dict.fromkeys(new, 0)
        tokens = []
        for i, first in positions.items():
            if rng.random() < 0.8:
                tokens.append((i, first, 2 if first == 0 and rng.random() < 0.7 else 1))
        run.step(new, tokens, ended)
        ended = []
        for i, first, n in tokens:
            expected += [(i, first + k) for k in range(n)]
            positions[i] = first + n
            if first + n > run.n_new or (first + n > 2 and rng.random() < 0.1):
                del positions[i]
                ended.append(i)
        got += run.blocks()
        assert all(len(block) <= block_rows for block in got)
        if ended and rng.random() < 0.5:  # the engine has stopped, and the driver waits for what is missing
            run.worker.recorder.fetch(0)
            got += run.blocks()
            assert sum(map(len, got)) == len(expected)
    run.worker.recorder.fetch(0)
    got += run.blocks()
    labels = [label for block in got for label in block]
    # However they go out, a prompt's rows come in order.
    assert labels == expected if not sorts else sorted(labels, key=lambda x: x[0]) == sorted(expected)
    run.mailboxes.remove()
