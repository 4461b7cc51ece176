"""Rows as Hugging Face computes them: one forward pass a prompt, in float32. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


@lru_cache(maxsize=4)
def _model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _blocks(model: Any) -> Sequence[torch.nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    blocks: Sequence[torch.nn.Module] = max(lists, key=len)
    return blocks


@torch.inference_mode()
def block_outputs(folder: Path, token_ids: Sequence[int]) -> list[torch.Tensor]:
    """Each decoder block's output, before the final norm: [n_layers] of [n_tokens, hidden_size]."""
    model = _model(folder)
    outputs: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handles = [block.register_forward_hook(keep) for block in _blocks(model)]
    try:
        model(torch.tensor([list(token_ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


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
