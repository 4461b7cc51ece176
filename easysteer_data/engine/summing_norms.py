"""Models in which the norm of the next block gives the sum of the pair that a block gives.

A compiled graph keeps that sum for what follows. For the pair to be read, it would have to keep the older
residual too, which it computes anew where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

_MODELS = "vllm.model_executor.models."
# File of vLLM's models -> the model and its blocks. A block begins with `hidden, residual =
# self.input_layernorm(hidden, residual)`, and its model hands the pair of a block to the next one as it is.
# Classes of these names elsewhere, and those derived from them, may do otherwise.
NORM_FIRST = {
    "glm4": ("Glm4Model", "Glm4DecoderLayer"),
    "glm4_moe": ("Glm4MoeModel", "Glm4MoeDecoderLayer"),
    "llama": ("LlamaModel", "LlamaDecoderLayer"),
    "mistral": ("MistralModel", "MistralDecoderLayer"),
    "mixtral": ("MixtralModel", "MixtralDecoderLayer"),
    "olmoe": ("OlmoeModel", "OlmoeDecoderLayer"),
    "qwen2": ("Qwen2Model", "Qwen2DecoderLayer"),
    "qwen2_moe": ("Qwen2MoeModel", "Qwen2MoeDecoderLayer"),
    "qwen3": ("Qwen3Model", "Qwen3DecoderLayer"),
    "qwen3_moe": ("Qwen3MoeModel", "Qwen3MoeDecoderLayer"),
}


def norms_behind(owner: nn.Module, blocks: Mapping[int, nn.Module]) -> dict[int, nn.Module]:
    """The norm that sums what a block gives, of each block that has such a one.

    Args:
        owner: the module whose blocks these are.
        blocks: layer id -> block, of this pipeline rank: the last one's norm is elsewhere.
    """
    file = type(owner).__module__.removeprefix(_MODELS)
    names = (_name(owner), *{_name(block) for block in blocks.values()})
    if file not in NORM_FIRST or names != tuple(f"{_MODELS}{file}.{name}" for name in NORM_FIRST[file]):
        return {}
    following = {layer_id: blocks.get(layer_id + 1) for layer_id in blocks}
    return {i: block.get_submodule("input_layernorm") for i, block in following.items() if block is not None}


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"
