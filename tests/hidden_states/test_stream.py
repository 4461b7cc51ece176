"""A stream of parts is the capture of everything, handed over part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import capture, capture_stream
from easysteer_data.engine.channel import remove_mailboxes
from easysteer_data.engine.session import CaptureSession
from easysteer_data.errors import SettingsError

PROMPTS = [{"prompt_token_ids": [5 + (7 * i + j) % 60 for j in range(1 + 13 * i % 70)]} for i in range(37)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="every prompt token"),
        pytest.param({"max_tokens": 6, "ignore_eos": True}, id="with completions"),
        pytest.param(
            {"max_tokens": 6, "ignore_eos": True, "select": {"generation": "all"}}, id="completions"
        ),
        pytest.param({"max_tokens": 9, "stop_token_ids": list(range(0, 64, 2))}, id="completions cut short"),
        pytest.param({"select": {"prompt_positions": [0, -1]}}, id="two positions"),
        pytest.param(
            {"max_tokens": 4, "select": {"prompt_tokens": [9], "generation_tokens": [9, 11]}}, id="tokens"
        ),
        pytest.param({"reduce": "mean", "max_tokens": 3}, id="means"),
        pytest.param({"reduce": "last", "dtype": "bfloat16"}, id="last rows"),
    ],
)
def test_parts_joined_are_the_whole(engines: Any, tiny_model: Path, options: dict[str, Any]) -> None:
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    whole = capture(llm, PROMPTS, layers=[0, 2], **options)
    parts = list(capture_stream(llm, PROMPTS, layers=[0, 2], batch_prompts=8, buffer_bytes=2**16, **options))
    assert [len(part) for part in parts] == [8, 8, 8, 8, 5]
    for layer_id in (0, 2):
        assert torch.equal(whole.rows(layer_id), torch.cat([part.rows(layer_id) for part in parts]))
    for i, part in enumerate(parts):
        for j in range(len(part)):
            assert part.sample_positions(j) == whole.sample_positions(8 * i + j)
            assert part.sample_token_ids(j) == whole.sample_token_ids(8 * i + j)
            assert part.outputs[j].outputs[0].token_ids == whole.outputs[8 * i + j].outputs[0].token_ids


def test_texts_are_streamed_as_well(engines: Any, tiny_model: Path) -> None:
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    texts = ["The city of Paris is in France.", "A quick brown fox jumps", "Numbers 0 1 2 3"]
    whole = capture(llm, texts)
    (first, second) = capture_stream(llm, texts, batch_prompts=2)
    assert torch.equal(whole.rows(1), torch.cat([first.rows(1), second.rows(1)]))


def test_a_loop_that_is_left_early_leaves_the_engine_usable(engines: Any, tiny_model: Path) -> None:
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    stream = capture_stream(llm, PROMPTS, batch_prompts=4)
    first = next(stream)
    stream.close()
    assert torch.equal(capture(llm, PROMPTS[:4]).rows(2), first.rows(2))


def test_a_layer_that_is_not_there_is_named_before_anything_runs(engines: Any, tiny_model: Path) -> None:
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    with pytest.raises(SettingsError, match=r"layers \[99\] are not hooked"):
        next(capture_stream(llm, PROMPTS, layers=[99]))


def test_rows_stay_as_they_are_while_later_captures_run(
    engines: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's rows are handed over in the memory where they arrive: it must not be written again too soon."""
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    expected = [capture(llm, PROMPTS[i : i + 3], layers=[0, 2]) for i in range(0, 36, 3)]
    monkeypatch.setattr(CaptureSession, "in_place", ("cpu",))
    kept = [capture(llm, PROMPTS[i : i + 3], layers=[0, 2]) for i in range(0, 36, 3)]
    kept += capture_stream(llm, PROMPTS[:36], layers=[0, 2], batch_prompts=3, buffer_bytes=2**21)
    for result, one in zip(kept, 2 * expected, strict=True):
        for layer_id in (0, 2):
            assert result.rows(layer_id).is_contiguous()
            assert torch.equal(result.rows(layer_id), one.rows(layer_id))


def test_rows_are_the_same_where_their_memory_is_bounded_in_all(
    engines: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the stage bounds it on a GPU: a quarter is shared memory."""
    llm = engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
    expected = [capture(llm, PROMPTS[i : i + 3], layers=[0, 2]) for i in range(0, 36, 3)]
    sessions: list[CaptureSession] = []

    def bounded(*args: Any, groups: int, **_: Any) -> CaptureSession:
        sessions.append(CaptureSession(*args, memory_bytes=2**24, groups=range(0, 36, groups)))
        return sessions[-1]

    monkeypatch.setattr("easysteer_data.hidden_states.stream.CaptureSession", bounded)
    monkeypatch.setattr(CaptureSession, "in_place", ("cpu",))
    remove_mailboxes(llm)
    parts = list(capture_stream(llm, PROMPTS[:36], layers=[0, 2], batch_prompts=3))
    assert [n for session in sessions for n in session._mailboxes.n_bytes] == [2**22]
    remove_mailboxes(llm)
    for result, one in zip(parts, expected, strict=True):
        for layer_id in (0, 2):
            assert torch.equal(result.rows(layer_id), one.rows(layer_id))
