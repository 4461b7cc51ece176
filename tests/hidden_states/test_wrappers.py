"""The seed's convenience calls give what `capture` gives, in other shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from easysteer_data.hidden_states import (
    capture,
    get_all_hidden_states_generate,
    get_moe_router_logits_generate,
)
from tests.tiny import LLAMA, save_tiny

PROMPTS = ["The city of Paris is in France.", "A quick brown fox"]


def test_rows_come_split_by_sample_or_joined(llm: Any) -> None:
    result = capture(llm, PROMPTS)
    nested, outputs = get_all_hidden_states_generate(llm, PROMPTS)
    joined, _ = get_all_hidden_states_generate(llm, PROMPTS, split_by_samples=False)
    assert len(outputs) == 2
    assert torch.equal(nested[1][2], result.sample(1)[2])
    assert torch.equal(joined[2], result.rows(2))


def test_token_and_position_lists_are_joined(llm: Any) -> None:
    result = capture(llm, PROMPTS)
    token = result.sample_token_ids(0)[3]
    nested, _ = get_all_hidden_states_generate(llm, PROMPTS, token_ids=[token], positions=[0, -1])
    for i in range(2):
        tokens = result.sample_token_ids(i)
        wanted = [p for p in range(len(tokens)) if tokens[p] == token or p in (0, len(tokens) - 1)]
        assert torch.equal(nested[i][0], result.sample(i)[0][wanted])


def test_router_logits_come_by_layer_or_by_sample(
    engines: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("models") / "mixtral"
    save_tiny(folder, "mixtral", **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    llm = engines.get(folder, streams=("router_logits",))
    by_layer, outputs = get_moe_router_logits_generate(llm, PROMPTS)
    n_rows = sum(len(output.prompt_token_ids) for output in outputs)
    assert {layer_id: rows.shape for layer_id, rows in by_layer.items()} == dict.fromkeys(
        range(3), (n_rows, 4)
    )
    samples, _ = get_moe_router_logits_generate(llm, PROMPTS, split_by_samples=True)
    assert torch.equal(torch.cat([sample[2] for sample in samples]), by_layer[2])
