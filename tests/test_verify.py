"""A run of a model's own rows passes; any other fails, and the report says where and why."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import open_run
from easysteer_data.verify import VerifyReport, bounds_of, verify_run
from easysteer_data.verify.comparison import compare
from easysteer_data.verify.reference import Reference, find_blocks
from tests import oracle
from tests.model_runs import ModelRun
from tests.tiny import save_tiny

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 250, n).tolist() for n in (5, 9, 1, 12, 7, 3, 8, 6)]
COMPLETIONS = [RNG.integers(3, 250, 4).tolist() for _ in PROMPTS]


@pytest.fixture
def right(tiny_model: Path) -> ModelRun:
    return ModelRun(tiny_model, PROMPTS)


def hidden_states(model: Path, token_ids: Any, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Hugging Face's own list: the embeddings, then each block's output, the last one normed."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    with torch.inference_mode():
        out = loaded(torch.tensor([list(token_ids)]), output_hidden_states=True, use_cache=False)
    return [state[0].clone() for state in out.hidden_states]


def block_inputs(model: Path, token_ids: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack(hidden_states(model, token_ids, dtype)[:-1], dim=1)


def next_outputs(model: Path, token_ids: Any) -> torch.Tensor:
    outputs = oracle.block_outputs(model, token_ids)
    return torch.stack([*outputs[1:], outputs[-1]], dim=1)


# What passes.


def test_a_models_own_rows_pass_in_every_layer(right: ModelRun, tmp_path: Path) -> None:
    run = right.write(tmp_path / "run")
    report = verify_run(run, model=str(right.model))
    assert report.passed
    assert report.failure == ""
    assert (report.n_prompts, report.n_rows) == (8, sum(map(len, PROMPTS)))
    assert [layer.layer_id for layer in report.layers] == [0, 1, 2]
    assert [layer.matches for layer in report.layers] == [0, 1, 2]
    for layer in report.layers:
        assert layer.later is not None
        assert layer.first is not None
        assert min(layer.later.cosine, layer.first.cosine) > 0.9999999
        assert max(layer.later.relative, layer.first.relative) < 1e-5


def test_some_layers_in_a_run_are_compared_with_their_own(right: ModelRun, tmp_path: Path) -> None:
    run = replace(right, layer_ids=(0, 2)).write(tmp_path / "run")
    report = verify_run(run, model=str(right.model))
    assert report.passed
    assert [layer.matches for layer in report.layers] == [0, 2]


def test_last_token_rows_pass_and_position_0_is_left_out(right: ModelRun, tmp_path: Path) -> None:
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 1]
    last = replace(right, prompts=prompts, positions=lambda n_tokens: [n_tokens - 1])
    report = verify_run(last.write(tmp_path / "run"), model=str(right.model))
    assert report.passed
    assert report.n_rows == len(prompts)
    assert {layer.first for layer in report.layers} == {None}


def test_rows_of_position_0_alone_pass(right: ModelRun, tmp_path: Path) -> None:
    first = replace(right, positions=lambda _: [0])
    report = verify_run(first.write(tmp_path / "run"), model=str(right.model))
    assert report.passed
    assert {layer.later for layer in report.layers} == {None}


def test_rows_of_generated_tokens_are_compared(right: ModelRun, tmp_path: Path) -> None:
    generated = replace(right, generated=COMPLETIONS)
    report = verify_run(generated.write(tmp_path / "run"), model=str(right.model))
    assert report.passed
    assert report.n_rows == sum(len(prompt) + 3 for prompt in PROMPTS)
    in_completion = {(0, 1): partial(change_row, row=len(PROMPTS[0]) + 2)}
    altered = replace(generated, alter=in_completion).write(tmp_path / "altered")
    failure = verify_run(altered, model=str(right.model)).failure
    assert f"prompt id-0 (made.txt:1), position {len(PROMPTS[0]) + 2}" in failure


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_a_narrow_model_pass(right: ModelRun, tmp_path: Path, dtype: str) -> None:
    def rows(token_ids: Any) -> torch.Tensor:
        states = hidden_states(right.model, token_ids, getattr(torch, dtype))
        return torch.stack(states[1:], dim=1)

    narrow = replace(right, rows=rows, layer_ids=(0, 1), model_dtype=dtype, dtype=dtype)
    report = verify_run(narrow.write(tmp_path / "run"), model=str(right.model))
    assert report.passed
    assert max(layer.later.relative for layer in report.layers if layer.later) > 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_rounded_to_a_storage_dtype_pass_and_rows_off_by_a_hundredth_do_not(
    right: ModelRun, tmp_path: Path, dtype: str
) -> None:
    stored = replace(right, dtype=dtype)
    assert verify_run(stored.write(tmp_path / "run"), model=str(right.model)).passed
    altered = replace(stored, alter={(3, 2): lambda rows: rows * 1.01}).write(tmp_path / "altered")
    assert not verify_run(altered, model=str(right.model)).passed


# What fails.


def change_row(rows: torch.Tensor, row: int) -> torch.Tensor:
    rows[row] = rows[row].roll(1)
    return rows


def test_one_altered_row_fails_and_is_named(right: ModelRun, tmp_path: Path) -> None:
    altered = replace(right, alter={(4, 1): partial(change_row, row=3)})
    report = verify_run(altered.write(tmp_path / "run"), model=str(right.model))
    assert not report.passed
    assert [layer.passed for layer in report.layers] == [True, False, True]
    assert "1 of 3 layers" in report.failure
    assert "hidden_states of layer 1, prompt id-4 (made.txt:5), position 3: cosine " in report.failure
    assert "cosine >= 0.99999, relative difference <= 0.0001" in report.failure
    assert "\n" not in report.failure


def test_an_altered_row_of_position_0_fails_in_its_own_columns(right: ModelRun, tmp_path: Path) -> None:
    altered = replace(right, alter={(4, 1): partial(change_row, row=0)})
    layer = verify_run(altered.write(tmp_path / "run"), model=str(right.model)).layers[1]
    assert not layer.passed
    assert layer.first is not None
    assert layer.later is not None
    assert layer.first.cosine < 0.99
    assert layer.later.cosine > 0.9999999


def test_the_row_furthest_from_its_bounds_is_the_one_named(right: ModelRun, tmp_path: Path) -> None:
    altered = replace(right, alter={(1, 0): lambda rows: rows * 1.01, (6, 2): partial(change_row, row=2)})
    failure = verify_run(altered.write(tmp_path / "run"), model=str(right.model)).failure
    assert "layer 2, prompt id-6 (made.txt:7), position 2" in failure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_block_inputs_are_called_the_layer_befores(
    right: ModelRun, tmp_path: Path, dtype: str
) -> None:
    inputs = partial(block_inputs, right.model, dtype=getattr(torch, dtype))
    shifted = replace(right, rows=inputs, dtype=dtype, model_dtype=dtype)
    report = verify_run(shifted.write(tmp_path / "run"), model=str(right.model))
    assert not report.passed
    assert [layer.matches for layer in report.layers] == [-1, 0, 1]
    assert "3 of 3 layers" in report.failure
    assert "rows of layer 2 match Hugging Face's layer 1" in report.failure
    assert "embeddings  FAILED" in report.table()


def test_rows_of_the_next_block_are_called_the_layer_afters(right: ModelRun, tmp_path: Path) -> None:
    shifted = replace(right, rows=partial(next_outputs, right.model))
    report = verify_run(shifted.write(tmp_path / "run"), model=str(right.model))
    assert [layer.matches for layer in report.layers] == [1, 2, 2]
    assert [layer.passed for layer in report.layers] == [False, False, True]
    assert "rows of layer 1 match Hugging Face's layer 2" in report.failure


def test_rows_after_the_final_norm_fail_in_the_last_layer(right: ModelRun, tmp_path: Path) -> None:
    normed = replace(right, rows=lambda ids: torch.stack(hidden_states(right.model, ids)[1:], dim=1))
    report = verify_run(normed.write(tmp_path / "run"), model=str(right.model))
    assert [layer.passed for layer in report.layers] == [True, True, False]


# What is refused.


def test_another_models_folder_is_refused_with_the_files_that_differ(right: ModelRun, tmp_path: Path) -> None:
    run = right.write(tmp_path / "run")
    other = save_tiny(tmp_path / "other", num_hidden_layers=2)
    with pytest.raises(RunError, match=r"other is not the model .*'tiny': config\.json, model\.safetensors"):
        verify_run(run, model=str(other))
    with pytest.raises(SettingsError, match="nowhere"):
        verify_run(run, model=str(tmp_path / "nowhere"))


def test_a_run_that_names_no_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    from tests.runs import random_rows, write_run

    run = write_run(tmp_path / "run", random_rows())
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["model"]["sha256"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="does not say which model"):
        verify_run(run, model=str(tiny_model))


def test_rows_whose_tokens_are_not_the_prompt_tables_are_refused(right: ModelRun, tmp_path: Path) -> None:
    other = [list(prompt) for prompt in PROMPTS]
    other[3][5] += 1
    run = replace(right, listed=other).write(tmp_path / "other")
    said = f"its row says token {PROMPTS[3][5]}, the prompt table {other[3][5]}"
    with pytest.raises(RunError, match=rf"prompt id-3 \(made\.txt:4\), position 5: {said}"):
        verify_run(run, model=str(right.model))
    short = replace(right, listed=[prompt[:8] for prompt in PROMPTS]).write(tmp_path / "short")
    with pytest.raises(RunError, match=r"position 8: .* the prompt table no token"):
        verify_run(short, model=str(right.model))


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (-1, 0), (4, -1)])
def test_an_unusable_sample_is_refused(right: ModelRun, tmp_path: Path, n: int, seed: int) -> None:
    with pytest.raises(SettingsError, match=rf"verify\.n .*found {n} and {seed}"):
        verify_run(tmp_path, model=str(right.model), n=n, seed=seed)


def test_a_model_dtype_without_bounds_is_refused() -> None:
    with pytest.raises(RunError, match="float8"):
        bounds_of("float8", "float32")


# The sample.


def sampled(run: Path, model: Path, n: int, seed: int) -> tuple[int, int]:
    report = verify_run(run, model=str(model), n=n, seed=seed)
    return report.n_prompts, report.n_rows


def test_more_prompts_than_there_are_takes_all(right: ModelRun, tmp_path: Path) -> None:
    assert sampled(right.write(tmp_path / "run"), right.model, 1000, 0) == (8, sum(map(len, PROMPTS)))


def test_the_sample_is_a_pure_function_of_the_seed(right: ModelRun, tmp_path: Path) -> None:
    # Prompt i has 2**i rows, so that the number of rows says which prompts were taken.
    prompts = [RNG.integers(3, 250, 2**i).tolist() for i in range(7)]
    run = replace(right, prompts=prompts).write(tmp_path / "run")
    drawn = [sampled(run, right.model, 3, seed) for seed in (0, 0, 1, 2, 3)]
    assert all(n_rows.bit_count() == n_prompts == 3 for n_prompts, n_rows in drawn)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 2


def test_prompts_without_rows_are_not_sampled(right: ModelRun, tmp_path: Path) -> None:
    late = replace(right, positions=lambda n_tokens: range(8, n_tokens))
    assert sampled(late.write(tmp_path / "run"), right.model, 5, 0) == (2, 1 + 4)
    none = replace(right, positions=lambda _: [])
    with pytest.raises(RunError, match="no row"):
        verify_run(none.write(tmp_path / "none"), model=str(right.model))


# The reference.


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {}),
        ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4}),
        ("opt", {"hidden_size": 96, "ffn_dim": 64, "num_hidden_layers": 3, "word_embed_proj_dim": 96}),
        (
            "mixtral",
            {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_local_experts": 5,
            },
        ),
    ],
)
def test_states_are_the_embeddings_and_every_blocks_output(
    model_type: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = save_tiny(tmp_path / model_type, model_type, **options)
    token_ids, positions = PROMPTS[1], torch.tensor([0, 4, 8])
    states = Reference(str(model), "float32").block_states(token_ids, positions)
    assert len(states) == 4
    for state, expected in zip(states[:-1], hidden_states(model, token_ids)[:-1], strict=True):
        torch.testing.assert_close(state, expected[positions])
    torch.testing.assert_close(states[-1], oracle.block_outputs(model, token_ids)[-1][positions])


def test_a_decoder_without_a_list_of_blocks_is_refused() -> None:
    blocks = torch.nn.ModuleList(torch.nn.ModuleList(torch.nn.Identity() for _ in range(5)) for _ in range(3))
    assert find_blocks(torch.nn.Sequential(blocks), 3) is blocks
    with pytest.raises(RunError, match=r"4 decoder blocks of Sequential"):
        find_blocks(torch.nn.Sequential(blocks), 4)


# Figures.


def test_figures_are_those_of_their_definitions() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, -2.0]])
    rows = torch.tensor([[4.0, 3.0], [0.0, -2.0]])[:, None]
    found = compare(rows, [1], [torch.zeros(2, 2), torch.full((2, 2), 9.0), expected])
    assert found.cosine[:, 0].tolist() == pytest.approx([24 / 25, 1.0], abs=1e-15)
    assert found.relative[:, 0].tolist() == [1 / 4, 0.0]
    assert found.shift[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_beyond_every_bound(bad: float) -> None:
    state = torch.ones(1, 4)
    found = compare(torch.full((1, 1, 4), bad), [0], [state * 2, state])
    excess = bounds_of("bfloat16", "bfloat16").excess(found.cosine, found.relative)
    assert excess.tolist() == [[math.inf]]


@pytest.mark.parametrize(
    ("model_dtype", "storage_dtype", "cosine", "relative"),
    [
        ("float32", "float32", 0.99999, 1e-4),
        ("float32", "float16", 0.99999, 1e-3),
        ("float32", "bfloat16", 0.99998, 5.1e-3),
        ("bfloat16", "float32", 0.93, 0.6),
    ],
)
def test_bounds_depend_on_both_dtypes(
    model_dtype: str, storage_dtype: str, cosine: float, relative: float
) -> None:
    bounds = bounds_of(model_dtype, storage_dtype)
    assert (bounds.cosine, bounds.relative) == pytest.approx((cosine, relative))


def test_the_table_keeps_to_80_columns_and_says_the_verdict(right: ModelRun, tmp_path: Path) -> None:
    report = verify_run(right.write(tmp_path / "run"), model=str(right.model))
    worst = replace(report.layers[0], layer_id=100, matches=-1, excess=math.inf)
    failed = replace(report, model="m" * 200, layers=(worst,), n_prompts=100_000, n_rows=10**9)
    for shown, verdict in ((report, "passed"), (failed, "FAILED")):
        lines = shown.table().splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[-1] == verdict
    assert sum(line.endswith(("layer 0", "layer 1", "layer 2")) for line in report.table().splitlines()) == 3


# A real capture.


def test_a_run_captured_by_vllm_passes(engines: Any, tiny_model: Path, tmp_path: Path) -> None:
    from easysteer_data.capture_run import capture_corpus

    engines.close()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"The city of {'x' * (i % 7)} is {i}.\n" for i in range(12)))
    settings = build(
        ExperimentSettings,
        {
            "name": "test",
            "out": "unused",
            "progress": False,
            "model": {"path": str(tiny_model), "dtype": "float32", "max_model_len": 128},
            "corpus": {"path": str(corpus)},
            "engine": {"enforce_eager": True, "in_process": True, "max_num_seqs": 8},
            "capture": {"max_tokens": 4},
        },
    )
    run = open_run(capture_corpus(settings, tmp_path / "run").run)
    report: VerifyReport = verify_run(run.path, model=str(tiny_model))
    assert report.passed, report.failure
    assert (report.n_prompts, report.n_rows) == (12, run.n_rows)
    assert run.n_rows > sum(run.prompts(["n_prompt_tokens"])["n_prompt_tokens"].to_pylist())
