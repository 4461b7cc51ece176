"""The seed's convenience calls give what `capture` gives, in other shapes."""

from __future__ import annotations

from typing import Any

import torch

from easysteer_data.hidden_states import capture, get_all_hidden_states_generate

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
