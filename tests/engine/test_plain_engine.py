"""An engine that the user opened without our worker gives the same rows, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.engine.open import close_llm
from easysteer_data.errors import UnsupportedEngineError
from easysteer_data.hidden_states import capture
from tests import oracle

PROMPTS = ["The city of Paris is in France.", "A quick brown fox", "Numbers 0 1 2 3"]


@pytest.fixture
def rows(llm: Any, engines: Any) -> Iterator[dict[str, torch.Tensor]]:
    """What a tapped engine gives; it is closed before the plain one opens."""
    expected = {
        stream: capture(llm, PROMPTS, max_tokens=4, ignore_eos=True, stream=stream).rows(1)
        for stream in ("hidden_states", "attention_heads")
    }
    engines.close()
    yield expected
    engines.close()


def plain(model: Path, **options: Any) -> Any:
    from vllm import LLM

    return LLM(model=str(model), dtype="float32", max_model_len=128, kv_cache_memory_bytes=2**28, **options)


@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_plain_engine_in_this_process_gives_the_same_rows(
    rows: dict[str, torch.Tensor], tiny_model: Path, eager: bool
) -> None:
    llm = plain(tiny_model, enforce_eager=eager)
    try:
        before = llm.generate(PROMPTS, use_tqdm=False)
        for stream, expected in rows.items():
            for _ in range(2):
                result = capture(llm, PROMPTS, max_tokens=4, ignore_eos=True, stream=stream)
                assert oracle.relative_difference(result.rows(1), expected) < 1e-5
        assert len(llm.generate(PROMPTS, use_tqdm=False)) == len(before)
    finally:
        close_llm(llm)


def test_a_plain_engine_without_the_stream_is_told_so(tiny_model: Path, engines: Any) -> None:
    engines.close()
    llm = plain(tiny_model, enforce_eager=True)
    try:
        with pytest.raises(ValueError, match="LlamaForCausalLM has no MoE router"):
            capture(llm, PROMPTS, stream="router_logits")
    finally:
        close_llm(llm)


@pytest.mark.slow
def test_a_plain_engine_in_a_child_process_is_told_what_to_add(
    tiny_model: Path, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.close()
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    llm = plain(tiny_model, enforce_eager=True)
    try:
        with pytest.raises(UnsupportedEngineError, match=r"worker_cls='easysteer_data\.engine"):
            capture(llm, PROMPTS)
        assert len(llm.generate(PROMPTS, use_tqdm=False)) == 3
    finally:
        close_llm(llm)
