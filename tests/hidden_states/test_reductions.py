"""Last and mean rows are exact over the whole prompt, and a budget stops with an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.hidden_states import capture
from tests.hidden_states.test_capture_rows import random_prompts

LENGTHS = [300, 4, 130, 1]  # the engine takes 128 tokens a step, so long prompts come in chunks


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_the_last_row_is_the_last_of_all_rows(llm: Any, max_tokens: int) -> None:
    options = {"max_tokens": max_tokens, "ignore_eos": True}
    full = capture(llm, random_prompts(LENGTHS), **options)
    last = capture(llm, random_prompts(LENGTHS), reduce="last", **options)
    for i, n_prompt in enumerate(LENGTHS):
        assert last.sample_positions(i) == [n_prompt + max_tokens - 2]
        assert torch.equal(last.sample(i)[1][0], full.sample(i)[1][-1])


@pytest.mark.parametrize("select", [None, {"prompt_window": [1, None], "generation": "all"}])
def test_the_mean_is_that_of_all_selected_rows(llm: Any, select: dict[str, Any] | None) -> None:
    options = {"max_tokens": 4, "ignore_eos": True, "select": select}
    full = capture(llm, random_prompts(LENGTHS), **options)
    mean = capture(llm, random_prompts(LENGTHS), reduce="mean", **options)
    assert mean.rows(0).dtype == torch.float32
    for i in range(len(LENGTHS)):
        expected = full.sample(i)[2].double().mean(0)
        torch.testing.assert_close(mean.sample(i)[2][0].double(), expected, rtol=1e-6, atol=1e-6)
        assert mean.sample_positions(i) == full.sample_positions(i)[-1:]


def test_a_mean_over_chosen_generated_tokens_and_an_early_stop_is_exact(llm: Any) -> None:
    prompts = random_prompts([20, 7])
    free = capture(llm, prompts, max_tokens=9, ignore_eos=True)
    generated = free.sample_token_ids(0)[20:]
    stop, wanted = generated[5], generated[1]
    options: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True, "stop_token_ids": [stop]}
    for select in ({"prompt": "all", "generation": "all"}, {"prompt": "all", "generation_tokens": [wanted]}):
        full = capture(llm, prompts, select=select, **options)
        mean = capture(llm, prompts, select=select, reduce="mean", **options)
        for i in range(2):
            expected = full.sample(i)[1].double().mean(0)
            torch.testing.assert_close(mean.sample(i)[1][0].double(), expected, rtol=1e-6, atol=1e-6)


def test_no_prompts_give_no_rows(llm: Any) -> None:
    assert capture(llm, [], reduce="mean").rows(0).shape == (0, 128)


def test_a_prompt_without_selected_rows_has_no_mean(llm: Any) -> None:
    prompts = random_prompts([6, 2])
    result = capture(llm, prompts, reduce="mean", select={"prompt_window": [3, None]})
    assert [len(result.sample_positions(i)) for i in range(2)] == [1, 0]


def test_a_mean_over_preempted_and_cached_prompts_counts_each_row_once(llm: Any) -> None:
    prompts = random_prompts([96]) * 3
    first = capture(llm, prompts, reduce="mean")
    second = capture(llm, prompts, reduce="mean")
    assert torch.equal(first.rows(1), second.rows(1))


def test_reductions_are_refused_beside_selections_of_their_own(llm: Any) -> None:
    with pytest.raises(SettingsError, match="per_prompt_selects"):
        capture(llm, ["one"], reduce="mean", per_prompt_selects=[None])
    with pytest.raises(SettingsError, match="reduce is 'median'"):
        capture(llm, ["one"], reduce="median")


def test_a_budget_of_rows_stops_with_an_error_and_drops_nothing(llm: Any) -> None:
    prompts = random_prompts([30, 30])
    assert capture(llm, prompts, budget_rows=60).rows(0).shape[0] == 60
    with pytest.raises(EngineError, match="budget_rows=59 is used up: 60 rows"):
        capture(llm, prompts, budget_rows=59)
    assert capture(llm, prompts).rows(0).shape[0] == 60
