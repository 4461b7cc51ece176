"""Which engines are captured: one worker a layer, no drafts; chunks of several ranks are joined."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from easysteer_data.engine.channel import join_ranks
from easysteer_data.engine.session import check_adapters, check_workers
from easysteer_data.engine.wire import Chunk, RequestTag, StartOrder, Sums, WorkerFacts
from easysteer_data.errors import EngineError, UnsupportedEngineError

ONE = WorkerFacts(
    rank=0,
    tensor_rank=0,
    n_tensor_ranks=1,
    n_pipeline_ranks=1,
    pid=1,
    runner="V1",
    dtype="float32",
    device="cpu",
    speculative=False,
    architecture="LlamaForCausalLM",
    plain=False,
    absent=[],
    streams={},
)


def test_one_worker_or_tensor_parallel_ones_are_accepted() -> None:
    check_workers([ONE])
    check_workers([replace(ONE, rank=rank, n_tensor_ranks=2) for rank in (0, 1)])


@pytest.mark.parametrize(("n_workers", "n_tensor", "n_pipeline"), [(2, 1, 2), (4, 2, 2), (2, 1, 1)])
def test_other_shapes_raise_the_seeds_error(n_workers: int, n_tensor: int, n_pipeline: int) -> None:
    facts = [
        replace(ONE, rank=rank, n_tensor_ranks=n_tensor, n_pipeline_ranks=n_pipeline)
        for rank in range(n_workers)
    ]
    with pytest.raises(RuntimeError, match=f"capture expects a single worker, got {n_workers} RPC results"):
        check_workers(facts)


def test_speculative_engines_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedEngineError, match="rejected draft tokens"):
        check_workers([replace(ONE, speculative=True)])


@pytest.mark.parametrize("adapters", [None, {"image": "folder"}])
def test_engines_that_choose_adapters_themselves_are_refused(adapters: dict[str, str] | None) -> None:
    lora = None if adapters is None else SimpleNamespace(default_mm_loras=adapters)
    llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(lora_config=lora)))
    if adapters is None:
        check_adapters(llm)
    else:
        with pytest.raises(UnsupportedEngineError, match="without default_mm_loras"):
            check_adapters(llm)


def chunk(rank: int) -> Chunk:
    return Chunk(
        prompt=torch.tensor([0, 0], dtype=torch.int32),
        position=torch.tensor([3, 4], dtype=torch.int32),
        token_id=torch.tensor([7, 8], dtype=torch.int32),
        values={
            "hidden_states": torch.full((1, 2, 3), 5.0),
            "attention_heads": torch.full((1, 2, 2), float(rank)),
        },
        peaks={
            "hidden_states": torch.full((1, 2), 5.0),
            "attention_heads": torch.tensor([[rank, 1 - rank]]).float(),
        },
    )


def test_heads_of_all_ranks_stand_side_by_side_and_hidden_states_come_once() -> None:
    joined = join_ranks([chunk(0), chunk(1)])
    assert joined.values["hidden_states"].shape == (1, 2, 3)
    assert joined.values["attention_heads"].tolist() == [[[0, 0, 1, 1], [0, 0, 1, 1]]]
    assert joined.peaks["attention_heads"].tolist() == [[1, 1]]


def test_ranks_that_recorded_different_rows_are_refused() -> None:
    other = replace(chunk(1), position=torch.tensor([3, 5], dtype=torch.int32))
    with pytest.raises(EngineError, match="different rows"):
        join_ranks([chunk(0), other])


def test_messages_survive_their_way() -> None:
    layers, dtypes = {"hidden_states": (1, 2)}, {"hidden_states": "float16"}
    order = StartOrder(layers, dtypes, "mailboxes", 64, 3, "mean", 9, "spool")
    assert StartOrder.from_wire(order.to_wire()) == replace(order, layers={"hidden_states": [1, 2]})
    sums = Sums(torch.tensor([4], dtype=torch.int32), {"router_logits": torch.ones(1, 1, 2).double()})
    assert torch.equal(
        Sums.from_tensors(sums.to_tensors()).values["router_logits"], sums.values["router_logits"]
    )
    assert RequestTag.of(object()) is None


def test_what_a_killed_driver_left_in_shared_memory_is_removed_and_nothing_else() -> None:
    from easysteer_data.engine.spool import make_spool, remove_spool

    code = "from easysteer_data.engine.spool import make_spool; print(make_spool(), flush=True); import os; "
    killed = subprocess.run(
        [sys.executable, "-c", code + "os.kill(os.getpid(), 9)"], capture_output=True, text=True, check=False
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9
    assert left.is_dir()
    first, second = make_spool(), make_spool()
    assert not left.exists()
    assert first.is_dir()
    remove_spool(first)
    remove_spool(second)
    assert not first.exists()
    assert not second.exists()
