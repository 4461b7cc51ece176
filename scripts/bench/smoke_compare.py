"""Compares what the engines of `gpu_smoke.py` left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from agreement import compare
from safetensors.torch import load_file
from smoke_engines import LAYERS, MOE, STEERED, prompts


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


def reference_of(kind: str) -> str:
    """The engine whose rows another one's are compared with: the eager one of its model."""
    if kind in MOE:
        return f"{MOE[kind]['model']}_eager"
    return "steered_eager_v2" if kind in STEERED else "eager_v2"


def entry_of(kind: str, folder: Path) -> dict[str, Any]:
    """What the report says of an engine that ran."""
    if not (folder / f"{reference_of(kind)}.json").exists():
        return {"error": f"{reference_of(kind)} left no rows to compare with"}
    entry = steered_entry if kind in STEERED else moe_entry if kind in MOE else plain_entry
    return entry(kind, folder)


def moe_entry(kind: str, folder: Path) -> dict[str, Any]:
    """Compare each stream's rows with those of the eager engine of the model.

    A token that rounding sends to another expert has other rows from there on; they are few.
    """
    own = load_file(folder / f"{kind}.safetensors")
    expected = load_file(folder / f"{reference_of(kind)}.safetensors")
    entry: dict[str, Any] = told(kind, folder)["facts"]
    for name, rows in own.items():
        entry[name] = compare(rows, expected[name]) | {"rows": len(rows), "all": len(expected[name])}
    return entry


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
    facts: dict[str, Any] = told(kind, folder)["facts"]
    rows = load_file(folder / f"{kind}.safetensors")
    expected = load_file(folder / f"{reference_of(kind)}.safetensors")
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
