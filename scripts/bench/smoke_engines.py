"""The engines of `gpu_smoke.py`: random models, prompts, and what each engine's process leaves behind."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from agreement import compare
from safetensors.torch import save_file

LAYERS = (0, 3, 5, 7)
PROMPT = {"prompt": "all"}
N_NEW = 17  # 16 of them are read by the model
ENGINES: dict[str, dict[str, Any]] = {
    "eager_v2": {"eager": True, "v2": True, "tapped": True},
    "compiled_v2": {"eager": False, "v2": True, "tapped": True},
    "untapped_v2": {"eager": False, "v2": True, "tapped": False},
    "compiled_v1": {"eager": False, "v2": False, "tapped": True},
    "child_v2": {"eager": False, "v2": True, "tapped": True, "child": True},
    "compiled_float32": {"eager": False, "v2": True, "tapped": True, "dtype": "float32"},
    "untapped_float32": {"eager": False, "v2": True, "tapped": False, "dtype": "float32"},
}
STEERED: dict[str, dict[str, Any]] = {
    "steered_eager_v2": {"eager": True, "v2": True},
    "steered_v2": {"eager": False, "v2": True},
    "steered_v1": {"eager": False, "v2": False},
    "steered_child_v2": {"eager": False, "v2": True, "child": True},
}
# Only where there are two GPUs.
PARALLEL: dict[str, dict[str, Any]] = {
    "tensor_parallel": {"eager": False, "v2": True, "child": True, "size": {"tensor_parallel_size": 2}},
    "tensor_parallel_v1": {"eager": False, "v2": False, "child": True, "size": {"tensor_parallel_size": 2}},
    "pipeline": {"eager": False, "v2": True, "child": True, "size": {"pipeline_parallel_size": 2}},
    "pipeline_v1": {"eager": False, "v2": False, "child": True, "size": {"pipeline_parallel_size": 2}},
}
# Experts and routers; in float32, since a rounding decides which expert a token goes to. Mixtral's gate is
# called by its block, Qwen's by the runner of its experts.
MOE: dict[str, dict[str, Any]] = {
    f"{model}_{kind}": {"eager": False, "v2": True, "model": model, "dtype": "float32", **options}
    for model in ("mixtral", "qwen3_moe")
    for kind, options in (
        ("eager", {"eager": True}),
        ("compiled", {}),
        ("tensor_parallel", {"child": True, "size": {"tensor_parallel_size": 2}}),
        ("pipeline", {"child": True, "size": {"pipeline_parallel_size": 2}}),
    )
}
ALL = ENGINES | STEERED | PARALLEL | MOE


def make_models(folder: Path) -> None:
    """Write random models, each into a folder of its name."""
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": 32000,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "initializer_range": 0.05,
    }
    narrow = {**shape, "hidden_size": 512, "intermediate_size": 512}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 64}
    torch.manual_seed(0)
    for name, family, sizes, dtype in (
        ("llama", "Llama", {**shape, "hidden_size": 1024, "intermediate_size": 2816}, torch.bfloat16),
        ("mixtral", "Mixtral", {**narrow, "num_local_experts": 8, "num_experts_per_tok": 2}, torch.float32),
        ("qwen3_moe", "Qwen3Moe", {**narrow, **experts}, torch.float32),
    ):
        config = getattr(transformers, f"{family}Config")(**sizes)
        getattr(transformers, f"{family}ForCausalLM")(config).to(dtype).save_pretrained(folder / name)


def prompts() -> list[dict[str, list[int]]]:
    """48 prompts of mixed length, some longer than one step of the engine takes."""
    rng = random.Random(1)  # noqa: S311
    lengths = [rng.randrange(1, 200) for _ in range(46)] + [700, 1500]
    return [{"prompt_token_ids": [rng.randrange(10, 32000) for _ in range(n)]} for n in lengths]


def run_engine(kind: str, folder: Path) -> None:
    """Open one engine, run the prompts, and leave its rows and tokens in the models' folder."""
    options = {"tapped": True, "model": "llama", **ALL[kind]}
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if options["v2"] else "0"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if options.get("child") else "0"
    from vllm import LLM, SamplingParams

    llm_options: dict[str, Any] = {
        "model": str(folder / options["model"]),
        "skip_tokenizer_init": True,
        "dtype": options.get("dtype", "bfloat16"),
        "max_model_len": 2048,
        "max_num_batched_tokens": 1024,
        "enforce_eager": options["eager"],
        "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": 4 * 2**30,  # engines side by side can't measure what is free
        "generation_config": "vllm",
        **options.get("size", {}),
    }
    sampling = {"max_tokens": N_NEW, "ignore_eos": True, "detokenize": False}
    greedy = SamplingParams(temperature=0, **sampling)
    rows: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] = {}
    if kind in STEERED:
        from smoke_steered import run_steered

        llm, outputs, rows, facts = run_steered(llm_options, sampling)
    elif kind in MOE:
        llm, outputs, rows = run_moe(llm_options)
    elif not options["tapped"]:
        llm = LLM(**llm_options)
        outputs = llm.generate(prompts(), greedy, use_tqdm=False)
    else:
        from easysteer_data import capture, open_llm
        from easysteer_data.engine.tapped import TappedEngine

        llm = open_llm(**llm_options, streams=("hidden_states", "attention_heads"))
        idle = llm.generate(prompts(), greedy, use_tqdm=False)
        with copies_counted() as copies:
            result = capture(llm, prompts(), layers=LAYERS, **sampling)
        # Of large steps, each layer once; none where the engine runs in another process.
        facts["steps in which a layer left while later ones ran"] = copies
        heads = capture(llm, prompts()[:4], layers=LAYERS, stream="attention_heads", select=PROMPT)
        outputs = result.outputs
        rows = {f"hidden.{layer_id}": result.rows(layer_id) for layer_id in LAYERS}
        rows |= {f"heads.{layer_id}": heads.rows(layer_id) for layer_id in LAYERS}
        rows["n_rows"] = torch.tensor([len(result.sample_positions(i)) for i in range(len(result))])
        facts["runner"] = TappedEngine(llm).facts[0].runner
        ends = {
            layer_id: capture(
                llm, prompts()[:4], layers=[layer_id], stream="attention_heads", select=PROMPT
            ).rows(layer_id)
            for layer_id in (LAYERS[0], LAYERS[-1])  # of a pipeline, each in a stage of its own
        }
        facts["rows of one layer alone against all"] = {
            layer_id: compare(alone, heads.rows(layer_id)) for layer_id, alone in ends.items()
        }
        facts["prompts_with_equal_tokens_while_recording"] = sum(
            list(a.outputs[0].token_ids) == list(b.outputs[0].token_ids)
            for a, b in zip(idle, outputs, strict=True)
        )
    facts |= {"cudagraph_mode": str(llm.llm_engine.vllm_config.compilation_config.cudagraph_mode)}
    save_file(rows, folder / f"{kind}.safetensors")
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    (folder / f"{kind}.json").write_text(json.dumps({"tokens": tokens, "facts": facts}))


def run_moe(llm_options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, torch.Tensor]]:
    """Every stream of an engine with experts, of all prompt tokens."""
    from easysteer_data import capture, open_llm
    from easysteer_data.types import STREAMS

    llm = open_llm(**llm_options, streams=STREAMS)
    rows: dict[str, torch.Tensor] = {}
    for stream in STREAMS:
        result = capture(llm, prompts(), layers=LAYERS, stream=stream, select=PROMPT)
        rows |= {f"{stream}.{layer_id}": result.rows(layer_id) for layer_id in LAYERS}
    return llm, result.outputs, rows


@contextmanager
def copies_counted() -> Iterator[dict[int, int]]:
    """Count, by a layer's place, how often its rows are copied during a forward pass of this process."""
    from easysteer_data.engine.recorder import Recorder

    copies: dict[int, int] = {}
    copy_layer = Recorder._copy_layer

    def counted(self: Any, step: Any, blocks: Any, stream: Any, place: int) -> None:
        copies[place] = copies.get(place, 0) + 1
        copy_layer(self, step, blocks, stream, place)

    with patch.object(Recorder, "_copy_layer", counted):
        yield copies
