"""A pipeline gets its prompts a few a step; what comes out is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from easysteer_data import capture
from easysteer_data.engine.feed import Feed, Request, Sampling

PROMPTS = [{"prompt_token_ids": [5 + i % 90, 6, 7]} for i in range(100)]


def feed_of(llm: Any, patch: pytest.MonkeyPatch, *, n_stages: int, max_tokens: int, n_seqs: int = 8) -> Feed:
    """A feed that takes the engine for a pipeline; the engine itself is one process."""
    config = llm.llm_engine.vllm_config
    with patch.context() as patched:
        patched.setattr(config.parallel_config, "pipeline_parallel_size", n_stages)
        patched.setattr(config.scheduler_config, "max_num_seqs", n_seqs)
        return Feed(llm, Sampling(max_tokens, {"ignore_eos": True}))


def taken_by_step(feed: Feed) -> list[int]:
    """How many prompts the feed has taken when each step of the engine has ended."""
    taken = 0

    def requests() -> Iterator[Request]:
        nonlocal taken
        for i, prompt in enumerate(PROMPTS):
            taken += 1
            yield Request(i, prompt, None)

    by_step, finished = [], []
    for outputs in feed.run(requests()):
        by_step.append(taken)
        finished += [tag for tag, _ in outputs]
    assert sorted(finished) == list(range(len(PROMPTS)))
    return by_step


def test_a_pipeline_that_generates_takes_a_few_prompts_a_step(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_step = taken_by_step(feed_of(llm, monkeypatch, n_stages=2, max_tokens=3))
    assert by_step[:4] == [32, 64, 96, 100]


def test_a_pipeline_takes_as_many_as_keep_it_full(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_step = taken_by_step(feed_of(llm, monkeypatch, n_stages=2, max_tokens=3, n_seqs=90))
    assert by_step[:2] == [60, 100]


@pytest.mark.parametrize(("n_stages", "max_tokens"), [(1, 3), (2, 1)])
def test_others_take_all_that_there_are(
    llm: Any, monkeypatch: pytest.MonkeyPatch, n_stages: int, max_tokens: int
) -> None:
    by_step = taken_by_step(feed_of(llm, monkeypatch, n_stages=n_stages, max_tokens=max_tokens))
    assert by_step[0] == len(PROMPTS)


def test_rows_do_not_depend_on_how_prompts_are_put_in(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = capture(llm, PROMPTS, max_tokens=4, layers=[2], ignore_eos=True)
    monkeypatch.setattr("easysteer_data.engine.feed._between_steps", lambda *_: 7)
    paced = capture(llm, PROMPTS, max_tokens=4, layers=[2], ignore_eos=True)
    assert torch.equal(paced.rows(2), expected.rows(2))
