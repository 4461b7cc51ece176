"""Steered forward passes of Hugging Face: a hook on each block changes its output. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

Change = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer id, output [n_tokens, width] of the block) -> what goes on instead."""


@lru_cache(maxsize=2)
def _model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@contextmanager
def _hooked(model: Any, change: Change, kept: dict[int, torch.Tensor]) -> Iterator[None]:
    def hook_of(layer_id: int) -> Any:
        def replace(_module: Any, _inputs: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            changed = change(layer_id, hidden[0])[None]
            kept[layer_id] = changed[0]
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return replace

    blocks = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    handles = [block.register_forward_hook(hook_of(i)) for i, block in enumerate(blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def forward(
    folder: Path, token_ids: Sequence[int], change: Change
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """Each layer's changed rows, [n_tokens, width], and log-probabilities [n_tokens, n_vocabulary]."""
    model, kept = _model(folder), {}
    with _hooked(model, change, kept):
        logits = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return kept, logits.log_softmax(-1)


def greedy(folder: Path, token_ids: Sequence[int], n_tokens: int, change: Change) -> list[int]:
    """The n most likely next tokens, one after the other, each of a whole steered forward pass."""
    ids = list(token_ids)
    for _ in range(n_tokens):
        ids.append(int(forward(folder, ids, change)[1][-1].argmax()))
    return ids[len(token_ids) :]
