"""Workers that share layers and widths: which shapes are captured, and that their parts become whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.channel import Channel, Mailboxes
from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.proof import FinishedPrompt, Recorded, Rules, prove
from easysteer_data.engine.ranks import Ranks
from easysteer_data.engine.wire import Chunk, RequestTag, StartOrder, StreamShape
from easysteer_data.errors import EngineError, UnsupportedEngineError
from tests.engine.made_worker import ONE, Worker


def test_one_worker_tensor_parallel_ones_and_pipelines_are_accepted() -> None:
    Ranks([ONE]).check()
    Ranks([replace(ONE, rank=rank, n_tensor_ranks=2) for rank in (0, 1)]).check()
    Ranks([replace(ONE, rank=rank, n_pipeline_ranks=2) for rank in (0, 1)]).check()


@pytest.mark.parametrize(("n_workers", "n_tensor", "n_pipeline"), [(2, 1, 1), (4, 2, 1), (2, 2, 2)])
def test_other_shapes_raise_the_seeds_error(n_workers: int, n_tensor: int, n_pipeline: int) -> None:
    facts = [
        replace(ONE, rank=rank, n_tensor_ranks=n_tensor, n_pipeline_ranks=n_pipeline)
        for rank in range(n_workers)
    ]
    with pytest.raises(RuntimeError, match=f"capture expects a single worker, got {n_workers} RPC results"):
        Ranks(facts).check()


def test_speculative_engines_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedEngineError, match="rejected draft tokens"):
        Ranks([replace(ONE, speculative=True)]).check()


TWO = Ranks([replace(ONE, rank=rank, tensor_rank=rank, n_tensor_ranks=2) for rank in (0, 1)])


def chunk(rank: int) -> Chunk:
    return Chunk(
        prompt=torch.tensor([0, 0], dtype=torch.int32),
        position=torch.tensor([3, 4], dtype=torch.int32),
        token_id=torch.tensor([7, 8], dtype=torch.int32),
        values={
            "hidden_states": [torch.full((2, 3), 5.0)],
            "attention_heads": [torch.full((2, 2), float(rank))],
        },
        peaks={
            "hidden_states": torch.full((1, 2), 5.0),
            "attention_heads": torch.tensor([[rank, 1 - rank]]).float(),
        },
    )


def test_heads_of_all_ranks_stand_side_by_side_and_hidden_states_come_once() -> None:
    joined = TWO.join([chunk(0), chunk(1)])
    assert [layer.shape for layer in joined.values["hidden_states"]] == [(2, 3)]
    assert [layer.tolist() for layer in joined.values["attention_heads"]] == [[[0, 0, 1, 1], [0, 0, 1, 1]]]
    assert joined.peaks["attention_heads"].tolist() == [[1, 1]]


def test_ranks_that_recorded_different_rows_are_refused() -> None:
    other = replace(chunk(1), position=torch.tensor([3, 5], dtype=torch.int32))
    with pytest.raises(EngineError, match="different rows"):
        TWO.join([chunk(0), other])


@pytest.mark.parametrize("n_tensor", [1, 2])
@pytest.mark.parametrize(
    ("stages", "asked"),
    [
        (((0, 1), (2, 3)), (0, 1, 2, 3)),
        (((0, 1), (2, 3)), (1, 2)),
        (((0, 1), (2, 3)), (3,)),
        (((0, 1, 2, 3),), (0, 3)),
    ],
)
@pytest.mark.parametrize("reduce", [None, "mean"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("block_rows", "kept_rows"), [(2, 64), (64, 64), (64, 9)])
def test_rows_of_all_stages_and_tensor_ranks_are_whole_and_in_order(
    stages: Sequence[Sequence[int]],
    asked: Sequence[int],
    n_tensor: int,
    reduce: Any,
    in_place: bool,
    block_rows: int,
    kept_rows: int,
) -> None:
    """No model and no vLLM: what each rank would compute is made up, the way out of it is the real one."""
    workers = [Worker(layer_ids, 4 // n_tensor, t) for layer_ids in stages for t in range(n_tensor)]
    ranks = Ranks([worker.facts(i, n_tensor, len(stages)) for i, worker in enumerate(workers)])
    ranks.check()
    shapes: Any = {
        stream: StreamShape(tuple(asked), ranks.width(stream), "float32")
        for stream in ("hidden_states", "attention_heads")
    }
    mailboxes = Mailboxes([2**18] * len(workers))
    order = StartOrder(
        dict.fromkeys(shapes, asked),
        dict.fromkeys(shapes, "float32"),
        str(mailboxes.folder),
        mailboxes.n_bytes,
        block_rows,  # with two, a step has several; with 64, several steps share one
        kept_rows,
        reduce=reduce,
    )
    hidden = torch.randn(4, 2, 7, 3)  # layer, prompt, position
    heads = torch.randn(4, 2, 7, 4)
    blocks = [BlockShape.of(part) for part in ranks.parts(order)]
    with Channel(mailboxes, ranks, blocks, lambda: None, in_place=in_place) as channel:
        for rank, worker in enumerate(workers):
            worker.recorder.start(order, rank)
            tags = [RequestTag(i, None).to_extra_args() for i in range(2)]
            requests = [
                SimpleNamespace(
                    req_id=str(i),
                    sampling_params=SimpleNamespace(extra_args=tag, max_tokens=4),
                    prompt_token_ids=[5] * 4,
                )
                for i, tag in enumerate(tags)
            ]
            worker.recorder.begin_step(SimpleNamespace(finished_req_ids=[], scheduled_new_reqs=requests))
        for start, count in ((0, 3), (3, 1), (4, 1), (5, 1), (6, 1)):
            geometry = StepGeometry(
                ["0", "1"], np.full(2, start), np.full(2, count), torch.full((64,), 5, dtype=torch.int32)
            )
            for rank, worker in enumerate(workers):
                worker.recorder.place_rows(lambda g=geometry: g)
                for i in worker.layers:
                    part = heads[i, :, start : start + count].reshape(2 * count, 4)
                    width = 4 // n_tensor
                    worker.heads[i](part[:, rank % n_tensor * width :][:, :width].contiguous())
                    worker.layers[i](hidden[i, :, start : start + count].reshape(2 * count, 3))
                worker.recorder.end_step()
        chunks = channel.take()
        replies = [worker.recorder.fetch(rank) for rank, worker in enumerate(workers)]
    # Whichever stage a layer is of, its rows are looked into where they lie, or in the one copy of its block.
    is_in_box = [
        any(0 <= rows.data_ptr() - box.whole.data_ptr() < box.whole.nbytes for box in mailboxes.of_rank)
        for chunk in chunks
        for rows in chunk.values["hidden_states"]
        if len(rows)
    ]
    assert all(is_in_box) if in_place else not any(is_in_box)
    mailboxes.remove()
    assert [reply["error"] for reply in replies] == [None] * len(workers)
    recorded = Recorded(chunks, ranks.join_sums([reply["sums"] for reply in replies]))
    prompts = [FinishedPrompt(i, f"request {i}", [5] * 4, [5] * 4, None) for i in range(2)]
    rows = prove(recorded, prompts, Rules(shapes, reduce))
    for stream, made in (("hidden_states", hidden), ("attention_heads", heads)):
        expected = made[list(asked)]
        if reduce == "mean":
            expected = expected.double().mean(2, keepdim=True).float()
        given = torch.stack(list(rows.values[stream]))  # type: ignore[index]
        assert torch.equal(given, expected.flatten(1, 2))


def test_a_stage_that_fails_is_named_while_the_other_runs_on() -> None:
    workers = [Worker((0,), 4, 0), Worker((1,), 4, 0)]
    ranks = Ranks([worker.facts(i, 1, 2) for i, worker in enumerate(workers)])
    mailboxes = Mailboxes([2**18, 2**18])
    layers, dtypes = {"hidden_states": (0, 1)}, {"hidden_states": "float32"}
    order = StartOrder(layers, dtypes, str(mailboxes.folder), mailboxes.n_bytes, block_rows=2, kept_rows=64)
    blocks = [BlockShape.of(part) for part in ranks.parts(order)]
    with Channel(mailboxes, ranks, blocks, lambda: None, in_place=False) as channel:
        for rank, worker in enumerate(workers):
            worker.recorder.start(order, rank)
            params = SimpleNamespace(extra_args=RequestTag(0, None).to_extra_args(), max_tokens=1)
            request = SimpleNamespace(req_id="0", sampling_params=params, prompt_token_ids=[5])
            worker.recorder.begin_step(SimpleNamespace(finished_req_ids=[], scheduled_new_reqs=[request]))
        geometry = StepGeometry(["0"], np.array([0]), np.array([1]), torch.full((64,), 5, dtype=torch.int32))
        workers[0].recorder.place_rows(lambda: geometry)
        workers[0].layers[0](torch.ones(1, 3))
        workers[0].recorder.end_step()
        workers[1].recorder.place_rows(lambda: replace(geometry, input_ids=torch.empty(0)))
        assert channel.take() == []
        assert channel.has_failed
        assert workers[0].recorder.fetch(0)["error"] is None
        assert workers[1].recorder.fetch(1)["error"] is not None
    mailboxes.remove()
