"""vllm-lens: a vLLM plugin; rows come back with each output. It asks for an eager engine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from vllm import LLM, SamplingParams

from peers import Capture


def open_peer(options: dict[str, Any], layers: Sequence[int]) -> Capture:
    """An engine with the plugin, which registers itself where it is installed and not disabled."""
    if find_spec("vllm_lens") is None:
        raise ModuleNotFoundError("vllm_lens is not installed")
    llm = LLM(**{**options, "enforce_eager": True})

    def capture(prompts: Sequence[dict[str, list[int]]]) -> int:
        sampling = SamplingParams(
            max_tokens=1,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            extra_args={"output_residual_stream": list(layers)},
        )
        outputs = llm.generate(list(prompts), sampling, use_tqdm=False)
        return sum(output.activations["residual_stream"].shape[1] for output in outputs)

    return capture
