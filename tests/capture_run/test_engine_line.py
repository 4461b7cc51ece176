"""Shards of several callers through one engine: one recording, the rows of a capture of the prompts alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import capture
from easysteer_data.capture_run import CapturePlan, plan_capture, shard_stream
from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.executors.engine_line import EngineLine
from easysteer_data.capture_run.executors.messages import Message, task_message
from easysteer_data.errors import EasySteerDataError
from easysteer_data.settings import ExperimentSettings, build

N_SHARDS = 6


@pytest.fixture
def plan(tiny_model: Path, tmp_path: Path) -> CapturePlan:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": "x " * (i % 9) + str(i)}) + "\n" for i in range(48)))
    values = {
        "name": "test",
        "out": str(tmp_path),
        "model": {"path": str(tiny_model), "dtype": "float32", "max_model_len": 128},
        "corpus": {"path": str(corpus)},
        "shards": {"min_shards": N_SHARDS},
    }
    return plan_capture(build(ExperimentSettings, values))


@contextmanager
def opened(plan: CapturePlan, llm: Any) -> Iterator[EngineLine]:
    """A line; behind the block its last recording has ended, which may be later than its last shard came."""
    line = EngineLine(replace(plan, prompts=(), selects=()), EngineLease(plan, llm))
    line.open()
    try:
        yield line
    finally:
        line._thread.shutdown()


def test_shards_asked_for_at_once_share_recordings_and_have_the_rows_of_their_prompts(
    plan: CapturePlan, tiny_model: Path, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engines.get(tiny_model, max_model_len=128)
    shards = plan.plan_shards(plan.shapes() or {})
    assert len(shards) == N_SHARDS
    recordings, session = [], shard_stream.CaptureSession

    def noted(*arguments: Any, **options: Any) -> Any:
        recordings.append(arguments)
        return session(*arguments, **options)

    monkeypatch.setattr(shard_stream, "CaptureSession", noted)
    tasks = [task_message(plan, number, shards[number]) for number in range(N_SHARDS)]
    with opened(plan, llm) as line, ThreadPoolExecutor(N_SHARDS) as callers:
        found = [*callers.map(lambda task: line.capture(task, shards), tasks)]

    assert 1 <= len(recordings) < N_SHARDS
    for number, shard in enumerate(found):
        prompts = [plan.prompts[index] for index in range(*shards[number])]
        alone = capture(llm, [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts])
        assert shard.proven.number == number
        assert shard.proven.index.token_id.tolist() == [t for p in prompts for t in p.token_ids]
        assert shard.n_tokens == sum(len(prompt.token_ids) + 1 for prompt in prompts)
        for layer_id, values in shard.proven.values["hidden_states"].items():
            torch.testing.assert_close(values, alone.rows(layer_id))


def test_a_recording_that_can_not_begin_ends_each_call(
    plan: CapturePlan, tiny_model: Path, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> Any:
        raise EasySteerDataError("no shared memory")

    shards = plan.plan_shards(plan.shapes() or {})
    tasks = [task_message(plan, number, shards[number]) for number in range(N_SHARDS)]
    with (
        opened(plan, engines.get(tiny_model, max_model_len=128)) as line,
        ThreadPoolExecutor(N_SHARDS) as callers,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(shard_stream, "CaptureSession", no_room)
            answers = [callers.submit(line.capture, task, shards) for task in tasks]
            for answer in answers:
                with pytest.raises(EasySteerDataError, match="no shared memory"):
                    answer.result(timeout=30)
        assert line.capture(tasks[0], shards).proven.number == 0


def test_a_prompt_that_the_engine_refuses_ends_its_call_and_the_next_one_works(
    plan: CapturePlan, tiny_model: Path, engines: Any
) -> None:
    shards = plan.plan_shards(plan.shapes() or {})
    good: Message = task_message(plan, 1, shards[1])
    bad: Message = task_message(plan, 0, shards[0])
    bad["prompts"][2] |= {"token_ids": (10**6,)}
    with opened(plan, engines.get(tiny_model, max_model_len=128)) as line:
        with pytest.raises(EasySteerDataError, match=r"prompt 2: vLLM refuses it"):
            line.capture(bad, shards)
        assert len(line.capture(good, shards).proven.prompts) == shards[1][1] - shards[1][0]
        bad["prompts"][2] |= {"token_ids": (3, 4)}
        assert line.capture(bad, shards).proven.prompts[2].prompt.token_ids == (3, 4)
