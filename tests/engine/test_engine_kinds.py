"""Eager, compiled, in-process and child-process engines give the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.hidden_states import capture
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
        pytest.param({"in_process": False}, id="eager in a child process"),
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
def test_a_closed_engine_leaves_nothing_in_shared_memory(engines: Any, tiny_model: Path) -> None:
    shared = Path("/dev/shm")
    engines.close()
    before = set(shared.glob("easysteer-data-*"))
    llm = engines.get(tiny_model, in_process=False)
    capture(llm, PROMPTS)
    engines.close()
    assert set(shared.glob("easysteer-data-*")) == before
