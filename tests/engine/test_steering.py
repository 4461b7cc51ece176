"""Steered engines give what Hugging Face gives when a hook changes each block's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import ApplySpec, SteeringSpec, VectorSpec, capture, close_llm, generate
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.model_facts import read_model_facts
from easysteer_data.vectors import SteeringVector, VectorProvenance, model_fingerprint
from tests import oracle
from tests.engine.test_architectures import CASES, open_case
from tests.hidden_states.test_capture_rows import random_prompts
from tests.steering import hugging_face
from tests.steering.hugging_face import Change
from tests.tiny import save_tiny

N_NEW = 6
SAMPLING: dict[str, Any] = {"max_tokens": N_NEW, "ignore_eos": True}


def vector(seed: int, layer_ids: Sequence[int] = (0, 1, 2), length: float = 2.0) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    steps = {layer_id: torch.randn(128, generator=generator) for layer_id in layer_ids}
    return {layer_id: length * step / step.norm() for layer_id, step in steps.items()}


def one(data: Any, **options: Any) -> SteeringSpec:
    return SteeringSpec(vectors=[VectorSpec(data=data, **options)])


def adding(data: dict[int, torch.Tensor], acts: Callable[[int], bool] = lambda _: True) -> Change:
    def change(layer_id: int, hidden: torch.Tensor) -> torch.Tensor:
        if layer_id not in data:
            return hidden
        mask = torch.tensor([[acts(position)] for position in range(len(hidden))])
        return hidden + mask * data[layer_id]

    return change


def erasing(data: dict[int, torch.Tensor]) -> Change:
    def change(layer_id: int, hidden: torch.Tensor) -> torch.Tensor:
        if layer_id not in data:
            return hidden
        basis = torch.linalg.qr(data[layer_id].reshape(-1, 128).T)[0]
        return hidden - hidden @ basis @ basis.T

    return change


def unchanged(_layer_id: int, hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def assert_is_hugging_face(result: Any, i: int, model: Path, change: Change) -> None:
    """Rows, greedy tokens and log-probabilities of one prompt are those of hooked forward passes."""
    output = result.outputs[i]
    prompt, new = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
    rows, logprobs = hugging_face.forward(model, [*prompt, *new], change)
    assert new == logprobs[len(prompt) - 1 : -1].argmax(-1).tolist()
    positions = result.sample_positions(i)
    for layer_id, found in result.sample(i).items():
        assert oracle.relative_difference(found, rows[layer_id][positions]) < 1e-4
    for step, of_step in enumerate(output.outputs[0].logprobs or []):
        for token_id, entry in of_step.items():
            assert abs(entry.logprob - float(logprobs[len(prompt) - 1 + step, token_id])) < 1e-4


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def logprobs_of(output: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]


@pytest.mark.parametrize("name", ["GPT-2", "StableLM"])
def test_blocks_with_one_output_or_an_older_sum_are_steered_as_by_a_hook(
    engines: Any, tmp_path: Path, name: str
) -> None:
    save_tiny(tmp_path, CASES[name].model_type, **CASES[name].config)
    assert_steered_as_by_a_hook(open_case(engines, CASES[name], tmp_path), tmp_path)


def test_blocks_with_a_pair_output_are_steered_as_by_a_hook(llm: Any, tiny_model: Path) -> None:
    assert_steered_as_by_a_hook(llm, tiny_model)


def assert_steered_as_by_a_hook(llm: Any, model: Path) -> None:
    prompts = random_prompts([3, 77, 1, 40])
    v, last = vector(1), vector(2, [2], length=30.0)
    doubled = {layer_id: 2 * step for layer_id, step in v.items()}
    specs = [one(v, scale=2.0), one(v, algorithm="erase"), one(last), None]
    changes = [adding(doubled), erasing(v), adding(last), unchanged]
    result = capture(llm, prompts, steering=specs, logprobs=5, **SAMPLING)
    assert len({tuple(tokens(output)) for output in result.outputs}) == 4
    for i, change in enumerate(changes):
        assert_is_hugging_face(result, i, model, change)
    text = generate(llm, prompts, steering=specs, **SAMPLING)
    assert [tokens(output) for output in text] == [tokens(output) for output in result.outputs]


@pytest.mark.parametrize(
    ("apply", "acts"),
    [
        ({"prompt": "all"}, lambda p: p < 20),
        ({"generation": "all"}, lambda p: p >= 20),
        ({"prompt_positions": [-1, 0]}, lambda p: p in (0, 19)),
        ({"prompt_window": [-5, None], "generation_window": [1, 3]}, lambda p: 15 <= p < 20 or p in (21, 22)),
        (ApplySpec(prompt="all", exclude_prompt_positions=[0, 3]), lambda p: p < 20 and p not in (0, 3)),
    ],
    ids=["prompt", "generation", "positions", "windows", "exclude"],
)
def test_a_vector_acts_on_the_selected_tokens_alone(
    llm: Any, tiny_model: Path, apply: Any, acts: Callable[[int], bool]
) -> None:
    v = vector(3, length=8.0)
    result = capture(llm, random_prompts([20, 20], seed=5), steering=one(v, apply=apply), **SAMPLING)
    for i in range(2):
        assert_is_hugging_face(result, i, tiny_model, adding(v, acts))


def test_clauses_on_generated_tokens_are_exact(llm: Any, tiny_model: Path) -> None:
    prompt = random_prompts([12], seed=7)
    new = tokens(generate(llm, prompt, **SAMPLING)[0])
    v = vector(4, length=8.0)
    # What follows the first token is not known beforehand: a hook that looks at the tokens is the oracle.
    ids = list(prompt[0]["prompt_token_ids"])
    for _ in range(N_NEW):
        change = adding(v, lambda p: p >= 12 and ids[p] in new[:1])
        ids.append(int(hugging_face.forward(tiny_model, ids, change)[1][-1].argmax()))
    spec = one(v, apply={"generation_tokens": new[:1]})
    assert tokens(generate(llm, prompt, steering=spec, **SAMPLING)[0]) == ids[12:]
    assert ids[12:] != new


def test_a_chunked_prompt_is_steered_by_positions_of_the_whole(llm: Any, tiny_model: Path) -> None:
    prompt = random_prompts([400])  # the engine takes 128 tokens a step
    v = vector(5)
    spec = one(v, apply={"prompt_window": [-150, -20], "prompt_positions": [1]})
    result = capture(llm, prompt, steering=spec, **SAMPLING)
    assert_is_hugging_face(result, 0, tiny_model, adding(v, lambda p: 250 <= p < 380 or p == 1))


def test_erased_directions_leave_no_projection_whatever_their_order(llm: Any, tiny_model: Path) -> None:
    u, w, v = vector(7), vector(8), vector(9)
    oblique = {layer_id: u[layer_id] + 0.5 * w[layer_id] for layer_id in u}
    vectors = [VectorSpec(data=u, algorithm="erase"), VectorSpec(data=oblique, algorithm="erase")]
    prompts = random_prompts([30, 5])
    result = capture(llm, prompts, steering=SteeringSpec(vectors=vectors), **SAMPLING)
    both = {layer_id: torch.stack([u[layer_id], oblique[layer_id]]) for layer_id in u}
    for i in range(2):
        assert_is_hugging_face(result, i, tiny_model, erasing(both))
    for layer_id in result.layer_ids:
        rows = result.rows(layer_id)
        for erased in (u[layer_id], oblique[layer_id]):
            assert float(((rows @ erased) / erased.norm() / rows.norm(dim=-1)).abs().max()) < 1e-5
    added = VectorSpec(data=v)
    orders = [SteeringSpec(vectors=order) for order in ([*vectors, added], [added, *vectors])]
    first, second = (capture(llm, prompts, steering=spec) for spec in orders)
    for layer_id in first.layer_ids:
        expected = (v[layer_id] @ u[layer_id]) / u[layer_id].norm()
        assert torch.allclose(first.rows(layer_id), second.rows(layer_id), rtol=1e-5, atol=1e-5)
        along = first.rows(layer_id) @ u[layer_id] / u[layer_id].norm()
        assert torch.allclose(along, expected.expand_as(along), atol=1e-4)


def test_added_vectors_sum_and_halves_of_an_erase_are_halves(llm: Any) -> None:
    a, b = vector(10), vector(11, [1, 2])
    summed = {0: a[0], 1: a[1] + 3 * b[1], 2: a[2] + 3 * b[2]}
    prompts = random_prompts([9, 14])
    pair = SteeringSpec(vectors=[VectorSpec(data=a), VectorSpec(data=b, scale=3)])
    found, expected = capture(llm, prompts, steering=pair), capture(llm, prompts, steering=one(summed))
    plain = capture(llm, prompts)
    half = capture(llm, prompts, steering=one(a, algorithm="erase", scale=0.5, layers=[1]))
    assert torch.allclose(found.rows(2), expected.rows(2), rtol=1e-5, atol=1e-5)
    assert torch.equal(half.rows(0), plain.rows(0))
    assert torch.allclose(half.rows(1) @ a[1], 0.5 * (plain.rows(1) @ a[1]), rtol=1e-4, atol=1e-4)


def test_vectors_that_meet_against_the_policy_stop_the_call_and_leave_the_engine_unsteered(llm: Any) -> None:
    prompts = random_prompts([9, 14])
    before = generate(llm, prompts, **SAMPLING)
    a, b = vector(12), vector(13)
    everywhere = SteeringSpec(vectors=[VectorSpec(data=a), VectorSpec(data=b)], conflict="error")
    with pytest.raises(SettingsError, match="layer 0: 2 vectors meet at one token"):
        generate(llm, prompts, steering=everywhere, **SAMPLING)
    places = [{"prompt_positions": [0, 3]}, {"prompt_positions": [3]}]
    at_three = SteeringSpec(
        vectors=[VectorSpec(data=v, apply=apply) for v, apply in zip((a, b), places, strict=True)],
        conflict="error",
    )
    for run in (generate, capture):
        with pytest.raises(EngineError, match="steering failed in worker 0: layer 0: 2 vectors meet"):
            run(llm, prompts, steering=at_three, **SAMPLING)
        assert [tokens(x) for x in generate(llm, prompts, **SAMPLING)] == [tokens(x) for x in before]
    apart = SteeringSpec(
        vectors=[
            VectorSpec(data=a, apply={"prompt": "all"}),
            VectorSpec(data=b, apply={"generation": "all"}),
        ],
        conflict="error",
    )
    assert [tokens(x) for x in generate(llm, prompts, steering=apart, **SAMPLING)] != [
        tokens(x) for x in before
    ]


@pytest.mark.parametrize("steered_first", [True, False])
def test_the_prefix_cache_never_mixes_steered_and_unsteered_prompts(
    llm: Any, tiny_model: Path, steered_first: bool
) -> None:
    prompt = random_prompts([200], seed=20 + steered_first)
    v = vector(14, length=10.0)
    ids = prompt[0]["prompt_token_ids"]
    expected = {
        True: hugging_face.greedy(tiny_model, ids, N_NEW, adding(v)),
        False: hugging_face.greedy(tiny_model, ids, N_NEW, unchanged),
    }
    for steered in (steered_first, not steered_first, steered_first, not steered_first):
        (output,) = generate(llm, prompt, steering=one(v) if steered else None, **SAMPLING)
        assert tokens(output) == expected[steered]
        if steered:
            assert not output.num_cached_tokens
    (again,) = generate(llm, prompt, **SAMPLING)
    assert again.num_cached_tokens > 0  # the cache is on: unsteered prompts do read it
    assert tokens(again) == expected[False]


def test_texts_token_ids_and_salted_prompts_are_steered_alike(llm: Any) -> None:
    text = "The city of Paris is in France."
    ids = llm.get_tokenizer().encode(text)
    spec = one(vector(15), apply={"prompt_positions": [-1]})
    outputs = generate(llm, [text, ids, {"prompt": text, "cache_salt": "own"}], steering=spec, **SAMPLING)
    assert len({tuple(tokens(output)) for output in outputs}) == 1
    assert tokens(generate(llm, [text], **SAMPLING)[0]) != tokens(outputs[0])
    with pytest.warns(UserWarning, match="means its last token"):
        generate(llm, [text], steering=one(vector(15), apply={"prompt_positions": [99]}), max_tokens=1)


def test_another_models_vector_is_refused_by_its_fingerprint(llm: Any, tiny_model: Path) -> None:
    own = model_fingerprint(read_model_facts(str(tiny_model)).fingerprint)
    fitted, foreign = (
        SteeringVector.of_steps(vector(15), VectorProvenance(model="tiny", model_fingerprint=fingerprint))
        for fingerprint in (own, "0" * 64)
    )
    prompts = random_prompts([6])
    found = generate(llm, prompts, steering=one(fitted), **SAMPLING)
    with pytest.raises(SettingsError, match=f"vectors.0.: .*fingerprint 0{{64}}, but this model's is {own}"):
        generate(llm, prompts, steering=one(foreign), **SAMPLING)
    forced = SteeringSpec(vectors=[VectorSpec(data=foreign)], force=True)
    assert tokens(generate(llm, prompts, steering=forced, **SAMPLING)[0]) == tokens(found[0])


def test_preempted_prompts_are_steered_alike_when_they_are_computed_again(
    engines: Any, tiny_model: Path
) -> None:
    # 8 blocks of 32 tokens: four prompts of up to 100 tokens don't fit.
    small = engines.get(
        tiny_model, max_model_len=128, block_size=32, num_gpu_blocks_override=8, disable_log_stats=False
    )
    v = vector(6)
    spec = one(v, apply={"generation_window": [0, None], "prompt_positions": [0]})
    prompts = random_prompts([40, 50, 45, 60])
    result = capture(small, prompts, steering=spec, max_tokens=40, ignore_eos=True)
    preempted = {metric.name: metric for metric in small.get_metrics()}["vllm:num_preemptions"]
    assert preempted.value > 0
    for i, n_prompt in enumerate([40, 50, 45, 60]):
        acts = lambda p, n=n_prompt: p == 0 or p >= n  # noqa: E731
        assert_is_hugging_face(result, i, tiny_model, adding(v, acts))


@pytest.fixture
def plain(engines: Any, tiny_model: Path) -> Iterator[Any]:
    """An engine into which nothing was ever put: it is tapped, then made ready for steering, at first use."""
    from vllm import LLM

    engines.close()
    llm = LLM(
        model=str(tiny_model),
        dtype="float32",
        max_model_len=128,
        kv_cache_memory_bytes=2**28,
        enforce_eager=True,
    )
    yield llm
    close_llm(llm)


def test_unsteered_prompts_of_a_steered_batch_are_bit_for_bit_as_without_steering(plain: Any) -> None:
    prompts = random_prompts([9, 33, 60, 2, 17])
    before = capture(plain, prompts, logprobs=3, **SAMPLING)
    specs = [None, one(vector(1)), None, one(vector(2), algorithm="erase"), None]
    mixed = capture(plain, prompts, steering=specs, logprobs=3, **SAMPLING)
    after = capture(plain, prompts, logprobs=3, **SAMPLING)
    for i in range(5):
        for found in (after, mixed) if specs[i] is None else (after,):
            assert tokens(found.outputs[i]) == tokens(before.outputs[i])
            assert logprobs_of(found.outputs[i]) == logprobs_of(before.outputs[i])
            for layer_id, rows in before.sample(i).items():
                assert torch.equal(found.sample(i)[layer_id], rows)
    for i in (1, 3):
        alone = capture(plain, prompts[i : i + 1], steering=specs[i], logprobs=3, **SAMPLING)
        assert logprobs_of(alone.outputs[0]) == logprobs_of(mixed.outputs[i])
        assert not torch.equal(mixed.sample(i)[2], before.sample(i)[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"enforce_eager": False}, id="compiled in process"),
        pytest.param({"tensor_parallel_size": 2}, id="two workers"),
    ],
)
def test_an_engine_opened_for_steering_equals_hugging_face(
    engines: Any, tiny_model: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "tensor_parallel_size" in options:  # one core for each worker; vLLM would want a memory node for each
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    llm = engines.get(tiny_model, steering=True, **options)
    prompts, v, u = random_prompts([9, 33, 140]), vector(17), vector(18)
    specs = [one(v), None, one(u, algorithm="erase")]
    for _ in range(2):
        result = capture(llm, prompts, steering=specs, **SAMPLING)
        for i, change in enumerate([adding(v), unchanged, erasing(u)]):
            assert_is_hugging_face(result, i, tiny_model, change)
