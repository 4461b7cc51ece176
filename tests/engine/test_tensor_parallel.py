"""Two tensor-parallel workers give one worker's rows, once, for every stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.hidden_states import capture
from easysteer_data.types import STREAMS
from tests import oracle
from tests.tiny import LLAMA, save_tiny

PROMPTS = ["The city of Paris is in France.", "A quick brown fox", "Numbers 0 1 2 3 4 5 6 7 8 9"]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mixtral"
    return save_tiny(folder, "mixtral", **LLAMA, num_local_experts=4, num_experts_per_tok=2)


@pytest.mark.slow
def test_two_workers_give_the_rows_of_one(
    engines: Any, mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One core for each worker; vLLM would want a memory node for each.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    results = {}
    for n_workers in (1, 2):
        llm = engines.get(mixtral, streams=STREAMS, tensor_parallel_size=n_workers)
        results[n_workers] = {
            stream: capture(llm, PROMPTS, max_tokens=4, ignore_eos=True, stream=stream) for stream in STREAMS
        }
    for stream in STREAMS:
        one, two = results[1][stream], results[2][stream]
        assert one.layer_ids == two.layer_ids == [0, 1, 2]
        assert one.layouts == two.layouts
        assert one.meta(0).positions == two.meta(0).positions
        for layer_id in one.layer_ids:
            assert one.rows(layer_id).shape == two.rows(layer_id).shape
            assert oracle.relative_difference(two.rows(layer_id), one.rows(layer_id)) < 1e-4
    assert results[2]["router_logits"].rows(0).shape[1] == 4
    assert torch.isfinite(results[2]["attention_heads"].rows(2)).all()
