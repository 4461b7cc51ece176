"""On a GPU: rows of compiled engines, CUDA graphs on, against the eager engine and Hugging Face; prints JSON.

`python scripts/bench/gpu_smoke.py` opens its engines in processes of their own, a few side by side: V2
runner compiled, eager and untapped; V1 runner compiled; the steered ones, eager and compiled. Needs vllm and
transformers, no model: it makes a random Llama of 8 layers, and no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

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
STEP_LENGTH = 8.0


def make_model(folder: Path) -> None:
    """Write a random bfloat16 Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def prompts() -> list[dict[str, list[int]]]:
    """48 prompts of mixed length, some longer than one step of the engine takes."""
    rng = random.Random(1)  # noqa: S311
    lengths = [rng.randrange(1, 200) for _ in range(46)] + [700, 1500]
    return [{"prompt_token_ids": [rng.randrange(10, 32000) for _ in range(n)]} for n in lengths]


def run_engine(kind: str, model: Path, out: Path) -> None:
    """Open one engine, run the prompts, and leave its rows and tokens in `out`."""
    options = {"tapped": True, **(ENGINES | STEERED | PARALLEL)[kind]}
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if options["v2"] else "0"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if options.get("child") else "0"
    from vllm import LLM, SamplingParams

    llm_options: dict[str, Any] = {
        "model": str(model),
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
        llm, outputs, rows, facts = run_steered(llm_options, sampling)
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
    save_file(rows, out / f"{kind}.safetensors")
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    (out / f"{kind}.json").write_text(json.dumps({"tokens": tokens, "facts": facts}))


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


def directions() -> dict[int, torch.Tensor]:
    """A random unit vector for each layer."""
    generator = torch.Generator().manual_seed(2)
    drawn = {layer_id: torch.randn(1024, generator=generator) for layer_id in LAYERS}
    return {layer_id: vector / vector.norm() for layer_id, vector in drawn.items()}


def run_steered(
    llm_options: dict[str, Any], sampling: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, torch.Tensor], dict[str, Any]]:
    """Steer three of each five prompts: added, erased, added to what is generated; two stay as they are."""
    from easysteer_data import SteeringSpec, VectorSpec, capture, generate, open_llm
    from easysteer_data.engine.tapped import TappedEngine

    llm = open_llm(**llm_options, steering=True)
    how: list[dict[str, Any] | None] = [
        None,
        {"scale": STEP_LENGTH},
        {"algorithm": "erase"},
        None,
        {"scale": STEP_LENGTH, "apply": {"generation": "all"}},
    ]
    specs = [
        None if options is None else SteeringSpec(vectors=[VectorSpec(data=directions(), **options)])
        for options in how
    ]
    steering = [specs[i % 5] for i in range(len(prompts()))]
    plain = capture(llm, prompts(), layers=LAYERS, **sampling)
    steered = capture(llm, prompts(), layers=LAYERS, steering=steering, **sampling)
    again = generate(llm, prompts(), steering=steering, **sampling)
    after = capture(llm, prompts(), layers=LAYERS, **sampling)
    tokens = [[list(o.outputs[0].token_ids) for o in r] for r in (plain.outputs, steered.outputs, again)]
    of_kind = {k: range(k, len(steering), 5) for k in range(5)}
    untouched = [*of_kind[0], *of_kind[3]]
    facts: dict[str, Any] = {
        "runner": TappedEngine(llm).facts[0].runner,
        "n_unsteered": len(untouched),
        "unsteered prompts with the bits of a batch without steering": sum(
            all(torch.equal(steered.sample(i)[layer_id], plain.sample(i)[layer_id]) for layer_id in LAYERS)
            for i in untouched
        ),
        "unsteered prompts with equal tokens": sum(tokens[0][i] == tokens[1][i] for i in untouched),
        "steered prompts with equal tokens": sum(
            tokens[0][i] == tokens[1][i] for k in (1, 2, 4) for i in of_kind[k]
        ),
        "prompts with equal tokens in capture and generate": sum(
            a == b for a, b in zip(tokens[1], tokens[2], strict=True)
        ),
        "rows after steering have the bits of before": all(
            torch.equal(after.rows(layer_id), plain.rows(layer_id)) for layer_id in LAYERS
        ),
    }
    first, u = LAYERS[0], directions()[LAYERS[0]]

    def prefill(result: Any, i: int, layer_id: int = first) -> torch.Tensor:
        rows: torch.Tensor = result.sample(i)[layer_id][: len(prompts()[i]["prompt_token_ids"])]
        return rows.float()

    # At the first steered layer the closed form is known from the unsteered rows.
    facts["added against closed form"] = compare(
        torch.cat([prefill(steered, i) for i in of_kind[1]]),
        torch.cat([prefill(plain, i) + STEP_LENGTH * u for i in of_kind[1]]),
    )
    before = torch.cat([prefill(plain, i) for i in of_kind[2]])
    facts["erased against closed form"] = compare(
        torch.cat([prefill(steered, i) for i in of_kind[2]]), before - (before @ u)[:, None] * u
    )
    facts["largest projection left, of the row's length"] = {
        str(layer_id): max(
            float(
                (prefill(steered, i, layer_id) @ v / prefill(steered, i, layer_id).norm(dim=-1)).abs().max()
            )
            for i in of_kind[2]
        )
        for layer_id, v in directions().items()
    }
    facts["prompt rows that generation steering left as they were"] = sum(
        torch.equal(prefill(steered, i), prefill(plain, i)) for i in of_kind[4]
    )
    rows = {
        f"hidden.{layer_id}": torch.cat([prefill(steered, i, layer_id) for i in range(len(steering))])
        for layer_id in LAYERS
    }
    return llm, steered.outputs, rows, facts


def compare(rows: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Cosine and largest difference relative to the row's largest value."""
    a, b = rows.float(), expected.float()
    relative = (a - b).abs().amax(-1) / b.abs().amax(-1)
    return {
        "min_cosine": float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min()),
        "max_relative": float(relative.max()),
        "median_relative": float(relative.median()),
    }


def hugging_face_rows(model: Path, out: Path) -> dict[str, dict[str, float]]:
    """Compare the eager engine's rows with a Hugging Face forward over its own tokens, per layer."""
    from transformers import LlamaForCausalLM

    hf = LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda().eval()
    rows = load_file(out / "eager_v2.safetensors")
    tokens = json.loads((out / "eager_v2.json").read_text())["tokens"]
    kept: dict[int, list[torch.Tensor]] = {layer_id: [] for layer_id in LAYERS}
    hooks = [
        hf.model.layers[layer_id].register_forward_hook(
            lambda _m, _i, o, keep=kept[layer_id]: keep.append((o[0] if isinstance(o, tuple) else o)[0].cpu())
        )
        for layer_id in LAYERS
    ]
    with torch.inference_mode():
        for prompt, new in zip(prompts(), tokens, strict=True):
            ids = torch.tensor([[*prompt["prompt_token_ids"], *new[:-1]]]).cuda()
            hf(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return {
        str(layer_id): compare(rows[f"hidden.{layer_id}"], torch.cat(kept[layer_id])) for layer_id in LAYERS
    }


def engine_process(kind: str, folder: Path) -> str:
    """Run one engine in a process of its own; its output if it failed, else nothing."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--engine", kind, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - started
    print(f"{kind}: exit code {done.returncode} after {took:.0f} s", file=sys.stderr, flush=True)
    return (done.stdout + done.stderr)[-3000:] if done.returncode else ""


def main() -> None:
    """Run every engine and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES | STEERED | PARALLEL)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="*", help="engines to run; the eager one must be among them")
    parser.add_argument("--side-by-side", type=int, default=4, help="engines at a time")
    arguments = parser.parse_args()
    there = [*ENGINES, *STEERED, *(PARALLEL if torch.cuda.device_count() > 1 else ())]
    chosen = arguments.only or there
    if arguments.engine:
        run_engine(arguments.engine, arguments.folder / "model", arguments.folder)
        return
    folder = Path(tempfile.mkdtemp(prefix="gpu-smoke-"))
    make_model(folder / "model")
    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        errors = dict(zip(chosen, pool.map(lambda kind: engine_process(kind, folder), chosen), strict=True))
    entries = {kind: {"error": error} for kind, error in errors.items() if error}
    for kind in chosen:
        if kind not in entries:
            entries[kind] = steered_entry(kind, folder) if kind in STEERED else plain_entry(kind, folder)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "layers": LAYERS, "engines": entries}
    for name, tapped, untapped in (
        ("bfloat16", "compiled_v2", "untapped_v2"),
        ("float32", "compiled_float32", "untapped_float32"),
    ):
        if {tapped, untapped} <= {*chosen} - {kind for kind, error in errors.items() if error}:
            same = equal_tokens(told(tapped, folder)["tokens"], told(untapped, folder)["tokens"])
            report[f"prompts with equal tokens, tapped and untapped, {name}"] = same
    report["eager_v2 against Hugging Face"] = hugging_face_rows(folder / "model", folder)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def told(kind: str, folder: Path) -> dict[str, Any]:
    """What an engine's process wrote down beside its rows."""
    written: dict[str, Any] = json.loads((folder / f"{kind}.json").read_text())
    return written


def equal_tokens(tokens: list[list[int]], others: list[list[int]]) -> int:
    """How many prompts got the same tokens."""
    return sum(a == b for a, b in zip(tokens, others, strict=True))


def plain_entry(kind: str, folder: Path) -> dict[str, Any]:
    """Compare one engine's rows and tokens with the eager one's."""
    own, reference = told(kind, folder), told("eager_v2", folder)
    entry = {
        **own["facts"],
        "prompts_with_equal_tokens_as_eager": equal_tokens(own["tokens"], reference["tokens"]),
        "n_prompts": len(own["tokens"]),
    }
    rows, expected = load_file(folder / f"{kind}.safetensors"), load_file(folder / "eager_v2.safetensors")
    if not rows:
        return entry
    n_prompt = [len(prompt["prompt_token_ids"]) for prompt in prompts()]
    starts = torch.cumsum(expected["n_rows"], 0) - expected["n_rows"]
    prefill = torch.cat([torch.arange(s, s + n) for s, n in zip(starts.tolist(), n_prompt, strict=True)])
    entry["rows_equal"] = {name: value.shape == expected[name].shape for name, value in rows.items()}
    for layer_id in LAYERS:
        name = f"hidden.{layer_id}"
        entry[f"{name} prefill"] = compare(rows[name][prefill], expected[name][prefill])
        entry[f"heads.{layer_id}"] = compare(rows[f"heads.{layer_id}"], expected[f"heads.{layer_id}"])
    return entry | decode_rows(rows, expected, own["tokens"], reference["tokens"], n_prompt)


def steered_entry(kind: str, folder: Path) -> dict[str, Any]:
    """Compare one steered engine's prompts' rows with the eager one's."""
    own = told(kind, folder)
    reference = folder / "steered_eager_v2.safetensors"
    if not reference.exists():
        return {**own["facts"], "error": "the eager engine left no rows to compare with"}
    rows, expected = load_file(folder / f"{kind}.safetensors"), load_file(reference)
    facts: dict[str, Any] = own["facts"]
    return facts | {f"{name} prefill": compare(rows[name], expected[name]) for name in rows}


def decode_rows(
    rows: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    tokens: list[list[int]],
    reference: list[list[int]],
    n_prompt: list[int],
) -> dict[str, Any]:
    """Compare the decode rows of those prompts whose tokens are the same in both engines."""
    places, first = [], 0
    for i, n_rows in enumerate(expected["n_rows"].tolist()):
        if tokens[i] == reference[i]:
            places.append(torch.arange(first + n_prompt[i], first + n_rows))
        first += n_rows
    index = torch.cat(places) if places else torch.empty(0, dtype=torch.int64)
    if not len(index):
        return {"decode rows": 0}
    return {"decode rows": len(index)} | {
        f"hidden.{layer_id} decode": compare(
            rows[f"hidden.{layer_id}"][index], expected[f"hidden.{layer_id}"][index]
        )
        for layer_id in LAYERS
    }


if __name__ == "__main__":
    main()
