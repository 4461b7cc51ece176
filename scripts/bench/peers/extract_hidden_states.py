"""vLLM's own extract_hidden_states: one safetensors file a prompt, written by its example connector."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from peers import Capture


def open_peer(options: dict[str, Any], layers: Sequence[int]) -> Capture:
    """An engine that extracts these layers; it counts them from 1, the embedding being 0."""
    folder = Path(tempfile.mkdtemp(prefix="extract-"))
    llm = LLM(
        **options,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {
                "hf_config": {"eagle_aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in layers]}
            },
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    )

    def capture(prompts: Sequence[dict[str, list[int]]]) -> int:
        sampling = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
        outputs = llm.generate(list(prompts), sampling, use_tqdm=False)
        files = [Path(output.kv_transfer_params["hidden_states_path"]) for output in outputs]
        n_rows = sum(len(output.prompt_token_ids) for output, file in zip(outputs, files, strict=True))
        for file in folder.iterdir():
            file.unlink()
        return n_rows

    return capture
