"""A pipeline gets its prompts a few a step; what comes out is the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from easysteer_data import capture
from easysteer_data.engine.feed import Feed, Request, Sampling

PROMPTS = [{"prompt_token_ids": [5 + i % 90, 6, 7]} for i in range(100)]


def feed_of(
    llm: Any, patch: pytest.MonkeyPatch, *, n_stages: int, max_tokens: int, window: int | None = None
) -> Feed:
    """A feed that takes the engine for a pipeline; the engine itself is one process."""
    with patch.context() as patched:
        patched.setattr(llm.llm_engine.vllm_config.parallel_config, "pipeline_parallel_size", n_stages)
        return Feed(llm, Sampling(max_tokens, {"ignore_eos": True}), window)


def run(feed: Feed, n_prompts: int = len(PROMPTS)) -> list[tuple[int, int]]:
    """How many prompts the feed has taken when each step of the engine has ended, and how many finish."""
    taken = 0

    def requests() -> Iterator[Request]:
        nonlocal taken
        for i in range(n_prompts):
            prompt = PROMPTS[i % len(PROMPTS)]
            taken += 1
            yield Request(i, prompt, None)

    by_step, finished = [], []
    for outputs in feed.run(requests()):
        by_step.append((taken, len(outputs)))
        finished += [tag for tag, _ in outputs]
    assert sorted(finished) == list(range(n_prompts))
    return by_step


def test_a_pipeline_that_generates_takes_a_few_prompts_a_step(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_step = run(feed_of(llm, monkeypatch, n_stages=2, max_tokens=9))
    assert [taken for taken, _ in by_step[:4]] == [32, 64, 96, 100]


def test_a_pipeline_takes_an_eighth_more_where_it_runs_many_and_as_many_as_finish(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_step = run(feed_of(llm, monkeypatch, n_stages=2, max_tokens=3), n_prompts=900)
    n_finished, most = 0, 0
    for (taken, finished), (then, _) in pairwise(by_step):
        running = taken - n_finished - finished
        assert then - taken == min(finished + max(32, running // 8), 900 - taken)
        n_finished += finished
        most = max(most, running)
    assert most // 8 > 32


def test_a_pipeline_never_has_more_than_the_window(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_step = run(feed_of(llm, monkeypatch, n_stages=2, max_tokens=3, window=48), n_prompts=200)
    n_finished = 0
    for taken, finished in by_step:
        assert taken - n_finished <= 48
        n_finished += finished


@pytest.mark.parametrize(("n_stages", "max_tokens"), [(1, 3), (2, 1)])
def test_others_take_all_that_there_are(
    llm: Any, monkeypatch: pytest.MonkeyPatch, n_stages: int, max_tokens: int
) -> None:
    by_step = run(feed_of(llm, monkeypatch, n_stages=n_stages, max_tokens=max_tokens))
    assert by_step[0][0] == len(PROMPTS)


def test_rows_do_not_depend_on_how_prompts_are_put_in(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = capture(llm, PROMPTS, max_tokens=4, layers=[2], ignore_eos=True)
    monkeypatch.setattr("easysteer_data.engine.feed._makes_batches_in_turn", lambda _: True)
    monkeypatch.setattr("easysteer_data.engine.feed._AT_ONCE", 7)
    paced = capture(llm, PROMPTS, max_tokens=4, layers=[2], ignore_eos=True)
    assert torch.equal(paced.rows(2), expected.rows(2))
