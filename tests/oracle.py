"""Rows as Hugging Face computes them: one forward pass a prompt, in float32. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


@lru_cache(maxsize=4)
def _model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    # The plain implementation: the fused ones leave out what some models need (Gemma-2's soft cap).
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def _blocks(model: Any) -> Sequence[torch.nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    blocks: Sequence[torch.nn.Module] = max(lists, key=len)
    return blocks


def block_outputs(folder: Path, token_ids: Sequence[int]) -> list[torch.Tensor]:
    """Each decoder block's output, before the final norm: [n_layers] of [n_tokens, hidden_size]."""
    modules = dict(enumerate(_blocks(_model(folder))))
    return list(_outputs(folder, token_ids, modules).values())


def head_outputs(folder: Path, token_ids: Sequence[int]) -> dict[int, torch.Tensor]:
    """The input of each attention's output projection: layer id -> [n_tokens, num_heads * head_size]."""
    names = ("o_proj", "out_proj", "dense", "c_proj")
    modules = _find(
        folder, lambda parent, name: name in names and parent in ("self_attn", "attn", "attention")
    )
    return _inputs(folder, token_ids, modules)


@torch.inference_mode()
def router_logits(folder: Path, token_ids: Sequence[int]) -> dict[int, torch.Tensor]:
    """The gate's input times its weights, before any softmax: layer id -> [n_tokens, n_experts]."""
    modules = _find(folder, lambda _, name: name in ("gate", "router"))
    inputs = _inputs(folder, token_ids, modules)
    return {layer_id: x @ modules[layer_id].weight.T for layer_id, x in inputs.items()}


def _find(folder: Path, fits: Callable[[str, str], bool]) -> dict[int, Any]:
    """The one module of each block whose parent's name and own name fit; blocks without one are left out."""
    found = {}
    for layer_id, block in enumerate(_blocks(_model(folder))):
        for path, module in block.named_modules():
            parent, _, name = path.rpartition(".")
            if fits(parent.rpartition(".")[2], name):
                found[layer_id] = module
    return found


def _inputs(
    folder: Path, token_ids: Sequence[int], modules: Mapping[int, torch.nn.Module]
) -> dict[int, torch.Tensor]:
    return _record(folder, token_ids, modules, lambda inputs, _: inputs[0])


def _outputs(
    folder: Path, token_ids: Sequence[int], modules: Mapping[int, torch.nn.Module]
) -> dict[int, torch.Tensor]:
    return _record(
        folder, token_ids, modules, lambda _, output: output[0] if isinstance(output, tuple) else output
    )


@torch.inference_mode()
def _record(
    folder: Path,
    token_ids: Sequence[int],
    modules: Mapping[int, torch.nn.Module],
    choose: Callable[[Any, Any], torch.Tensor],
) -> dict[int, torch.Tensor]:
    """What `choose` takes of each module's (inputs, output) in one forward pass, as [n_tokens, width]."""
    rows: dict[int, torch.Tensor] = {}

    def hook_of(layer_id: int) -> Any:
        def keep(_module: Any, inputs: Any, output: Any) -> None:
            rows[layer_id] = choose(inputs, output).clone().reshape(len(token_ids), -1)

        return keep

    handles = [module.register_forward_hook(hook_of(i)) for i, module in modules.items()]
    try:
        _model(folder)(torch.tensor([list(token_ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return rows


@torch.inference_mode()
def greedy(folder: Path, token_ids: Sequence[int], n_tokens: int) -> list[int]:
    """The n most likely next tokens, one after the other."""
    model = _model(folder)
    ids = list(token_ids)
    for _ in range(n_tokens):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(token_ids) :]


def relative_difference(rows: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of a row, in units of the row's largest value; [n, width] each."""
    scale = expected.abs().amax(-1, keepdim=True)
    return float(((rows - expected).abs() / scale).max())


def cosine(rows: torch.Tensor, expected: torch.Tensor) -> float:
    """Smallest cosine between a row and its expected one."""
    return float(torch.nn.functional.cosine_similarity(rows.double(), expected.double(), dim=-1).min())
