"""What users choose of a capture: streams, tokens, one row a prompt, storage; what the run tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data.capture_run import capture_corpus, estimate_capture
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import inspect_run, open_run, repair_run
from tests import oracle
from tests.tiny import save_tiny

N_PROMPTS = 12


@pytest.fixture
def llm(engines: Any, tiny_model: Path) -> Any:
    return engines.get(tiny_model, max_model_len=128)


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three blocks, of which the second has no experts."""
    shape = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4}
    experts = {"num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "mlp_only_layers": [1]}
    return save_tiny(tmp_path_factory.mktemp("models") / "moe", "qwen3_moe", **shape, **experts)


def experiment(model: Path, folder: Path, **groups: Any) -> ExperimentSettings:
    corpus = folder / "corpus.jsonl"
    rows = [
        {"text": f"The city of {'x' * i} is in {i}: (A) yes (B) no. {'AB'[i % 2]}", "label": i % 2}
        for i in range(N_PROMPTS)
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {
        "name": "test",
        "out": str(folder),
        "progress": False,
        "model": {"path": str(model), "dtype": "float32", "max_model_len": 128},
        "corpus": {"path": str(corpus), "label_column": "label"},
        "engine": {
            "enforce_eager": True,
            "in_process": True,
            "max_num_seqs": 8,
            "options": {"kv_cache_memory_bytes": 2**28},
        },
        "shards": {"min_shards": 3, "min_free_gb": 0.01},
    }
    return build(ExperimentSettings, values | groups)


def test_three_streams_of_one_forward_pass_equal_hugging_face(
    moe: Path, tmp_path: Path, engines: Any
) -> None:
    engines.close()
    streams = ["hidden_states", "router_logits", "attention_heads"]
    asked = experiment(moe, tmp_path, capture={"streams": streams, "layers": [0, 1]})
    run = open_run(capture_corpus(asked, tmp_path / "run").run)
    # The second block has no router, so that stream has one layer of the two.
    assert run.streams == {"hidden_states": (0, 1), "router_logits": (0,), "attention_heads": (0, 1)}
    assert run.manifest.header.streams["attention_heads"].layout == {"num_heads": 4, "head_size": 32}
    every = torch.arange(run.n_rows)
    values = {stream: run.gather(stream, run.layer_ids(stream), every) for stream in run.streams}
    for prompt in run.prompts().to_pylist():
        mine = run.index.prompt == prompt["index"]
        blocks = oracle.block_outputs(moe, prompt["token_ids"])
        heads = oracle.head_outputs(moe, prompt["token_ids"])
        routers = oracle.router_logits(moe, prompt["token_ids"])
        expected = {"hidden_states": blocks[:2], "attention_heads": [heads[0], heads[1]]}
        expected["router_logits"] = [routers[0]]
        for stream, rows in values.items():
            assert oracle.relative_difference(rows[mine], torch.stack(expected[stream], 1)) < 1e-4
    assert capture_corpus(asked, tmp_path / "run").n_shards_made == 0


def test_a_stream_that_the_model_lacks_is_refused_before_anything_is_written(
    tiny_model: Path, moe: Path, tmp_path: Path, engines: Any
) -> None:
    engines.close()
    with pytest.raises(SettingsError, match="no MoE router"):
        capture_corpus(
            experiment(tiny_model, tmp_path, capture={"streams": ["router_logits"]}), tmp_path / "a"
        )
    capture = {"streams": ["router_logits"], "layers": [1]}
    with pytest.raises(Exception, match=r"router_logits: none of the layers \[1\] has it; \[0, 2\] have"):
        capture_corpus(experiment(moe, tmp_path, capture=capture), tmp_path / "b")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_one_row_a_prompt_is_the_mean_of_the_chosen_ones(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    span = {"substring": " is in", "tokens": "all"}
    chosen = experiment(tiny_model, tmp_path, select={"span": span})
    mean = replace(chosen, select={"span": span, "reduce": "mean"})
    rows = open_run(capture_corpus(chosen, tmp_path / "rows", llm=llm).run)
    means = open_run(capture_corpus(mean, tmp_path / "means", llm=llm).run)
    assert means.n_rows == N_PROMPTS < rows.n_rows
    values = rows.gather("hidden_states", [1], torch.arange(rows.n_rows))[:, 0].double()
    expected = torch.stack([values[rows.index.prompt == i].mean(0) for i in range(N_PROMPTS)])
    found = means.gather("hidden_states", [1], torch.arange(N_PROMPTS))[:, 0].double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_answers_letter_is_one_row_of_the_letters_token(
    tiny_model: Path, tmp_path: Path, llm: Any
) -> None:
    asked = experiment(tiny_model, tmp_path, select={"span": {"pattern": r"([AB])$", "tokens": "last"}})
    run = open_run(capture_corpus(asked, tmp_path / "run", llm=llm).run)
    assert run.n_rows == N_PROMPTS
    last = [prompt["n_prompt_tokens"] - 1 for prompt in run.prompts().to_pylist()]
    assert run.index.position.tolist() == last


@pytest.mark.parametrize(("storage", "bound"), [("bfloat16", 4e-3), ("float8_e4m3", 4e-2), ("int8", 1.5e-2)])
def test_narrow_storage_keeps_the_rows_and_says_what_it_lost(
    storage: str, bound: float, tiny_model: Path, tmp_path: Path, llm: Any
) -> None:
    wide = open_run(capture_corpus(experiment(tiny_model, tmp_path), tmp_path / "wide", llm=llm).run)
    asked = experiment(tiny_model, tmp_path, capture={"storage": storage, "layers": [0, 2]})
    run = open_run(capture_corpus(asked, tmp_path / "narrow", llm=llm).run)
    every = torch.arange(run.n_rows)
    exact = wide.gather("hidden_states", [0, 2], every)
    assert oracle.relative_difference(run.gather("hidden_states", [0, 2], every).float(), exact) < bound


def test_statistics_alone_are_those_of_the_rows(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    whole = capture_corpus(experiment(tiny_model, tmp_path), tmp_path / "whole", llm=llm).run
    bare = capture_corpus(
        experiment(tiny_model, tmp_path, capture={"rows": False}), tmp_path / "bare", llm=llm
    ).run
    assert not list(bare.rglob("*.tar"))
    rows = open_run(whole).gather("hidden_states", [1], torch.arange(open_run(whole).n_rows))[:, 0]
    mean = open_run(bare).statistics("hidden_states", 1).mean
    np.testing.assert_allclose(mean.numpy(), rows.double().mean(0).numpy(), rtol=1e-12)


def test_the_manifest_tells_where_the_run_comes_from(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    asked = experiment(tiny_model, tmp_path)
    manifest = json.loads(
        (capture_corpus(asked, tmp_path / "run", llm=llm).run / "manifest.json").read_text()
    )
    assert manifest["provenance"]["config"]["model"]["path"] == str(tiny_model)
    assert manifest["provenance"]["hardware"]["cores"] > 0
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["tokenisation"]["n_bos"] == 0
    assert set(manifest["model"]["sha256"]) >= {"config.json", "model.safetensors"}
    n_tokens = sum(len(prompt["token_ids"]) for prompt in open_run(tmp_path / "run").prompts().to_pylist())
    assert manifest["measured"]["n_tokens"] == n_tokens + N_PROMPTS  # one token is generated for each
    assert manifest["measured"]["wall_s"] > 0
    assert manifest["measured"]["gates"] == {}


def test_an_existing_run_is_refused_or_replaced_as_asked(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    asked = experiment(tiny_model, tmp_path)
    run = capture_corpus(asked, tmp_path / "run", llm=llm).run
    with pytest.raises(RunError, match="on_existing"):
        capture_corpus(replace(asked, on_existing="fail"), run, llm=llm)
    other = experiment(tiny_model, tmp_path, capture={"layers": [2]}, on_existing="overwrite")
    assert capture_corpus(other, run, llm=llm).n_shards_made == 3
    assert open_run(run).layers == (2,)


def test_bad_shards_are_found_by_name_and_exactly_these_are_captured_again(
    tiny_model: Path, tmp_path: Path, llm: Any
) -> None:
    asked = experiment(tiny_model, tmp_path)
    run = capture_corpus(asked, tmp_path / "run", llm=llm).run
    good = {path: path.read_bytes() for path in run.rglob("shard-*") if path.is_file()}
    flipped, gone = run / "hidden_states/layer-001/shard-000001.tar", run / "prompts/shard-000002.parquet"
    data = bytearray(flipped.read_bytes())
    data[2000] ^= 1
    flipped.write_bytes(data)
    gone.unlink()
    assert [fault.name for fault in inspect_run(run).bad] == [
        str(path.relative_to(run)) for path in (flipped, gone)
    ]
    repair_run(run)
    assert capture_corpus(asked, run, llm=llm).n_shards_made == 2
    assert {path: path.read_bytes() for path in good} == good
    assert inspect_run(run).ok


def test_a_run_that_would_not_fit_stops_before_it_starts(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    asked = experiment(tiny_model, tmp_path, shards={"min_free_gb": 1e6})
    with pytest.raises(RunError, match=r"needs about .* GB more.*dry_run=true"):
        capture_corpus(asked, tmp_path / "run", llm=llm)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_what_the_run_then_is(tiny_model: Path, tmp_path: Path, llm: Any) -> None:
    asked = experiment(tiny_model, tmp_path)
    estimate = estimate_capture(asked, tmp_path / "run", llm)
    assert not (tmp_path / "run").exists()
    outcome = capture_corpus(asked, tmp_path / "run", llm=llm)
    manifest = open_run(outcome.run).manifest
    assert (estimate.n_prompts, estimate.n_rows) == (outcome.n_prompts, outcome.n_rows)
    assert estimate.n_shards == len(manifest.shards) == 3
    assert estimate.layer_bytes["hidden_states"] == outcome.n_rows * 128 * 4
    assert 0 < estimate.hours < 1
    assert f"{outcome.n_rows:,}" in estimate.table()


def test_a_dry_run_of_a_sample_is_near_the_whole(
    tiny_model: Path, tmp_path: Path, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easysteer_data.capture_run.estimate.N_SAMPLED", 4)
    asked = experiment(tiny_model, tmp_path)
    estimate = estimate_capture(asked, tmp_path / "run", llm)
    assert "scaled from a sample of 4" in estimate.table()
    n_rows = capture_corpus(asked, tmp_path / "run", llm=llm).n_rows
    assert abs(estimate.n_rows - n_rows) < 0.15 * n_rows


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS"))


def test_engines_that_follow_each_other_give_their_memory_back(
    tiny_model: Path, tmp_path: Path, engines: Any
) -> None:
    engines.close()
    used = []
    for layers in ([0], [1], [2]):  # each engine has a KV cache of 268 MB
        asked = experiment(tiny_model, tmp_path, capture={"layers": layers})
        capture_corpus(asked, tmp_path / f"run{layers[0]}")
        used.append(resident_mb())
    assert used[2] - used[0] < 60
