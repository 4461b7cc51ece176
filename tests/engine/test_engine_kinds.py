"""Eager, compiled, in-process and child-process engines give the same rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import SteeringSpec, VectorSpec, capture, generate
from easysteer_data.engine.recorder import Recorder
from easysteer_data.errors import UnsupportedEngineError
from tests import oracle

PROMPTS = ["The city of Paris is in France.", "A quick brown fox jumps", "Numbers 0 1 2 3 4 5 6 7 8 9"]


@pytest.fixture(scope="module")
def eager_rows(engines: Any, tiny_model: Path) -> dict[int, torch.Tensor]:
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    return dict(capture(llm, PROMPTS, max_tokens=5, ignore_eos=True).layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"enforce_eager": False}, id="compiled in process"),
        pytest.param({"enforce_eager": False, "in_process": False}, id="compiled in a child process"),
    ],
)
def test_engines_of_every_kind_agree(
    engines: Any, tiny_model: Path, eager_rows: dict[int, torch.Tensor], options: dict[str, bool]
) -> None:
    llm = engines.get(tiny_model, **options)
    result = capture(llm, PROMPTS, max_tokens=5, ignore_eos=True)
    for layer_id, expected in eager_rows.items():
        assert oracle.relative_difference(result.rows(layer_id), expected) < 1e-5


@pytest.mark.slow
def test_a_compiled_engine_tells_of_each_layer_once_a_step(
    engines: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its rows are on their way while the next layers run."""
    llm = engines.get(tiny_model, enforce_eager=False)
    told: list[tuple[str, int]] = []
    copy_layer = Recorder._copy_layer

    def copy(self: Recorder, step: Any, blocks: Any, stream: Any, place: int) -> None:
        told.append((stream, place))
        copy_layer(self, step, blocks, stream, place)

    monkeypatch.setattr(Recorder, "_copy_layer", copy)
    capture(llm, [{"prompt_token_ids": list(range(10, 110))}], layers=[0, 2])
    assert told == [("hidden_states", 0), ("hidden_states", 1)]


@pytest.mark.slow
def test_an_eager_engine_in_a_child_process_agrees_and_leaves_nothing_in_shared_memory(
    engines: Any, tiny_model: Path, eager_rows: dict[int, torch.Tensor]
) -> None:
    def ours() -> list[Path]:
        return sorted(Path("/dev/shm").glob(f"easysteer-data-{os.getpid()}-*"))

    engines.close()
    assert ours() == []
    llm = engines.get(tiny_model, in_process=False)
    result = capture(llm, PROMPTS, max_tokens=5, ignore_eos=True)
    for layer_id, expected in eager_rows.items():
        assert oracle.relative_difference(result.rows(layer_id), expected) < 1e-5
    # It was not opened for steering, and nothing can be added to it from here.
    steering = SteeringSpec(vectors=[VectorSpec(data={1: torch.ones(128)})])
    with pytest.raises(
        UnsupportedEngineError, match=r"open_llm\(model, steering=True, \.\.\.\).*worker_cls="
    ):
        generate(llm, PROMPTS, steering=steering)
    assert len(generate(llm, PROMPTS)) == len(PROMPTS)
    assert len(ours()) == 1
    engines.close()
    assert ours() == []
