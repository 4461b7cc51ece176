"""Rows of a real model, all 30 layers of SmolLM2-135M, against Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.hidden_states import capture
from tests import oracle


@pytest.mark.slow
def test_rows_of_32_prompts_equal_hugging_face(engines: Any, smollm2: Path) -> None:
    texts = [prompt.text for prompt in read_corpus(CorpusSettings(path="builtin:city_facts", limit=32))]
    llm = engines.get(smollm2, max_num_batched_tokens=2048, max_num_seqs=32)
    result = capture(llm, texts)
    assert result.layer_ids == list(range(30))
    for i in range(32):
        expected = oracle.block_outputs(smollm2, result.sample_token_ids(i))
        for layer_id, rows in result.sample(i).items():
            # Position 0 carries massive activations; from 1 on rows are compared as they are.
            assert oracle.cosine(rows[1:], expected[layer_id][1:]) >= 0.99999
            assert oracle.relative_difference(rows[1:], expected[layer_id][1:]) <= 1e-4
            assert oracle.relative_difference(rows[:1], expected[layer_id][:1]) <= 1e-4
