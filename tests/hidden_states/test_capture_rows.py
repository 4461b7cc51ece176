"""Rows are those of Hugging Face, in the situations where rows go wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.hidden_states import CaptureResult, capture
from tests import oracle

TEXTS = ["The city of Paris is in France.", "A quick brown fox", "Numbers", "Héllo wörld, naïve café 🙂."]


def random_prompts(lengths: list[int], seed: int = 0) -> list[dict[str, list[int]]]:
    rng = random.Random(seed)
    return [{"prompt_token_ids": [rng.randrange(3, 300) for _ in range(n)]} for n in lengths]


def assert_equals_hugging_face(result: CaptureResult, model: Path) -> None:
    for i, output in enumerate(result.outputs):
        token_ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        positions = result.sample_positions(i)
        assert result.sample_token_ids(i) == [token_ids[position] for position in positions]
        expected = oracle.block_outputs(model, token_ids)
        for layer_id, rows in result.sample(i).items():
            assert oracle.relative_difference(rows, expected[layer_id][positions]) < 1e-4


def test_every_row_of_a_mixed_batch_is_its_own_prompts(llm: Any, tiny_model: Path) -> None:
    result = capture(llm, [*TEXTS, *random_prompts([1, 40, 3, 77, 12, 64, 2, 30, 5])])
    assert result.layer_ids == [0, 1, 2]
    assert [len(result.sample_positions(i)) for i in range(len(result))] == [
        len(output.prompt_token_ids) for output in result.outputs
    ]
    assert_equals_hugging_face(result, tiny_model)


def test_a_batch_equals_each_prompt_alone_bit_for_bit(llm: Any) -> None:
    prompts = random_prompts([9, 33, 60, 2, 17])
    batch = capture(llm, prompts)
    for i, prompt in enumerate(prompts):
        alone = capture(llm, [prompt])
        for layer_id in batch.layer_ids:
            assert torch.equal(batch.sample(i)[layer_id], alone.rows(layer_id))


def test_repeated_prompts_lose_no_row_to_the_prefix_cache(llm: Any) -> None:
    prefix = random_prompts([96])[0]["prompt_token_ids"]
    prompts = [{"prompt_token_ids": [*prefix, last]} for last in (5, 6, 7)]
    first, second = capture(llm, prompts), capture(llm, prompts)
    assert first.rows(1).shape == (3 * 97, 128)
    assert torch.equal(first.rows(1), second.rows(1))


def test_a_chunked_prompt_has_every_row_once_and_one_last_row(llm: Any, tiny_model: Path) -> None:
    prompts = random_prompts([500])  # the engine takes 128 tokens a step
    whole = capture(llm, prompts)
    assert whole.sample_positions(0) == list(range(500))
    assert_equals_hugging_face(whole, tiny_model)
    last = capture(llm, prompts, select={"prompt_positions": [-1]})
    assert last.sample_positions(0) == [499]
    assert torch.equal(last.rows(2)[0], whole.rows(2)[499])


def test_generated_tokens_have_rows_where_the_model_read_them(llm: Any, tiny_model: Path) -> None:
    result = capture(llm, random_prompts([7, 20, 3]), max_tokens=6, ignore_eos=True)
    for i, n_prompt in enumerate([7, 20, 3]):
        # The sixth token is sampled but never read, so it has no row.
        assert result.sample_positions(i) == list(range(n_prompt + 5))
    assert_equals_hugging_face(result, tiny_model)


def test_rows_of_one_step_survive_the_steps_that_overwrite_the_engines_buffers(llm: Any) -> None:
    prompt = random_prompts([9])
    one_step = capture(llm, prompt)
    many_steps = capture(llm, prompt, max_tokens=30, ignore_eos=True)
    for layer_id in one_step.layer_ids:
        assert torch.equal(many_steps.rows(layer_id)[:9], one_step.rows(layer_id))


def test_taps_leave_greedy_tokens_as_they_are(llm: Any, tiny_model: Path) -> None:
    prompt = random_prompts([11])[0]
    result = capture(llm, [prompt], max_tokens=5, ignore_eos=True)
    expected = oracle.greedy(tiny_model, prompt["prompt_token_ids"], 5)
    assert list(result.outputs[0].outputs[0].token_ids) == expected


def test_preempted_prompts_have_every_row_once(engines: Any, tiny_model: Path) -> None:
    # 8 blocks of 32 tokens: four prompts of up to 100 tokens don't fit.
    small = engines.get(
        tiny_model, max_model_len=128, block_size=32, num_gpu_blocks_override=8, disable_log_stats=False
    )
    result = capture(small, random_prompts([40, 50, 45, 60]), max_tokens=40, ignore_eos=True)
    preempted = {metric.name: metric for metric in small.get_metrics()}["vllm:num_preemptions"]
    assert preempted.value > 0
    for i, n_prompt in enumerate([40, 50, 45, 60]):
        assert result.sample_positions(i) == list(range(n_prompt + 39))
    assert_equals_hugging_face(result, tiny_model)


def test_layers_and_dtype_are_as_asked(llm: Any) -> None:
    prompts = random_prompts([5, 9])
    full = capture(llm, prompts)
    result = capture(llm, prompts, layers=[2, 0], dtype="float16")
    assert result.layer_ids == [0, 2]
    assert result.rows(2).dtype == torch.float16
    assert torch.equal(result.rows(2), full.rows(2).half())


def test_per_prompt_selects_override_the_global_one(llm: Any) -> None:
    selects = [{"prompt_positions": [0, 2]}, None, {"prompt_window": [-2, None]}]
    prompts = random_prompts([6, 7, 8])
    result = capture(llm, prompts, select={"prompt_positions": [-1]}, per_prompt_selects=selects)
    assert [result.sample_positions(i) for i in range(3)] == [[0, 2], [6], [6, 7]]


def test_generated_token_clauses_are_exact(llm: Any) -> None:
    prompts = random_prompts([6, 9])
    everything = capture(llm, prompts, max_tokens=9, ignore_eos=True)
    wanted = everything.sample_token_ids(0)[7]  # the second generated token of the first prompt
    result = capture(llm, prompts, max_tokens=9, ignore_eos=True, select={"generation_tokens": [wanted]})
    for i, n_prompt in enumerate([6, 9]):
        tokens = everything.sample_token_ids(i)
        expected = [p for p in range(n_prompt, n_prompt + 8) if tokens[p] == wanted]
        assert result.sample_positions(i) == expected
    assert 7 in result.sample_positions(0)


def test_an_empty_selection_keeps_outputs_and_gives_empty_views(llm: Any) -> None:
    result = capture(llm, random_prompts([4, 5]), select={"prompt_tokens": [399]})
    assert len(result) == 2
    assert result.rows(0).shape == (0, 128)
    assert result.sample(1)[0].shape == (0, 128)
    assert result.sample_positions(1) == []


@pytest.mark.parametrize("i", [-1, 0])
def test_samples_are_views_in_prompt_order(llm: Any, i: int) -> None:
    result = capture(llm, random_prompts([3, 4]))
    nested = result.to_nested()
    assert torch.equal(nested[i][1], result.sample(i)[1])
    assert result.meta(0).req_ids[0] == result.outputs[0].request_id
