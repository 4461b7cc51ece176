"""Hugging Face Transformers: a forward hook a layer, batches of equal length, rows to page-locked memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from peers import Capture

BATCH = 32


def open_peer(options: dict[str, Any], layers: Sequence[int]) -> Capture:
    """Hooks on the blocks of `model.layers`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, options["dtype"])
    with torch.device(device):
        config = AutoConfig.from_pretrained(options["model"])
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    kept: dict[int, torch.Tensor] = {}
    for layer_id in layers:
        model.model.layers[layer_id].register_forward_hook(
            lambda _module, _inputs, output, at=layer_id: kept.__setitem__(
                at, output[0] if isinstance(output, tuple) else output
            )
        )

    def capture(prompts: Sequence[dict[str, list[int]]]) -> int:
        ids = torch.tensor([prompt["prompt_token_ids"] for prompt in prompts])
        shape = (len(layers), *ids.shape, config.hidden_size)
        rows = torch.empty(shape, dtype=dtype, pin_memory=device == "cuda")
        with torch.inference_mode():
            for start in range(0, len(ids), BATCH):
                model.model(ids[start : start + BATCH].to(device), use_cache=False)
                for place, layer_id in enumerate(layers):
                    rows[place, start : start + BATCH].copy_(kept[layer_id], non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()
        return int(ids.numel())

    return capture
