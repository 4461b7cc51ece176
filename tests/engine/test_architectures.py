"""Rows of every architecture are those of Hugging Face, per layer and stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.errors import SettingsError
from easysteer_data.hidden_states import CaptureResult, capture
from easysteer_data.types import Stream
from tests import oracle
from tests.hidden_states.test_capture_rows import random_prompts
from tests.tiny import save_tiny

DENSE: tuple[Stream, ...] = ("hidden_states", "attention_heads")
MOE: tuple[Stream, ...] = (*DENSE, "router_logits")

# 4 query heads and 2 key-value heads of 32, 3 blocks; the scale keeps random activations far from linear.
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
GEMMA = SHAPE | {"head_dim": 32, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
}
MAMBA2: dict[str, Any] = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1}


@dataclass(frozen=True)
class Case:
    model_type: str
    config: dict[str, Any]
    streams: tuple[Stream, ...] = DENSE
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "Llama": Case("llama", SHAPE),
    "Qwen2": Case("qwen2", SHAPE),
    "Qwen3": Case("qwen3", SHAPE | {"head_dim": 64}),
    "Gemma-2": Case("gemma2", GEMMA),
    "Gemma-3": Case("gemma3_text", GEMMA),
    "GPT-2": Case("gpt2", {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 512, "initializer_range": 0.1}),
    "OPT": Case("opt", {"hidden_size": 128, "ffn_dim": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512, "word_embed_proj_dim": 128, "init_std": 0.1}),
    "GPT-NeoX": Case("gpt_neox", SHAPE),
    "Phi-3": Case("phi3", SHAPE),
    "Cohere": Case("cohere", SHAPE),
    "StableLM": Case("stablelm", SHAPE),
    "Mixtral": Case("mixtral", SHAPE | {"num_local_experts": 8}, MOE),
    "Qwen3-MoE": Case("qwen3_moe", SHAPE | EXPERTS | {"head_dim": 32, "num_experts": 8, "mlp_only_layers": [1]}, MOE),
    "OLMoE": Case("olmoe", SHAPE | {"num_experts": 8, "num_experts_per_tok": 2}, MOE),
    "PhiMoE": Case("phimoe", SHAPE | {"num_local_experts": 8, "num_experts_per_tok": 2}, MOE),
    "DeepSeek-V2": Case("deepseek_v2", SHAPE | EXPERTS | MLA, MOE),
    "DeepSeek-V3": Case("deepseek_v3", SHAPE | EXPERTS | MLA | {"n_group": 2, "topk_group": 1}, MOE),
    "Falcon-H1": Case("falcon_h1", SHAPE | MAMBA2 | {"mamba_d_ssm": 256}),
    "Jamba": Case("jamba", SHAPE | {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 16}, MOE),
    "GraniteMoeHybrid": Case("granitemoehybrid", SHAPE | MAMBA2 | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64}, MOE),
    "Qwen3-Next": Case("qwen3_next", SHAPE | EXPERTS | {"head_dim": 32, "num_experts": 8, "shared_expert_intermediate_size": 64, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}, MOE),
    "LFM2": Case("lfm2", SHAPE | {"layer_types": ["conv", "full_attention", "conv"]}),
    "Mamba2": Case("mamba2", {"hidden_size": 128, "num_hidden_layers": 3, "state_size": 16, "num_heads": 8, "head_dim": 32, "n_groups": 1}, ("hidden_states",)),
}


def expected_rows(model: Path, stream: Stream, token_ids: list[int]) -> dict[int, torch.Tensor]:
    if stream == "hidden_states":
        return dict(enumerate(oracle.block_outputs(model, token_ids)))
    if stream == "attention_heads":
        return oracle.head_outputs(model, token_ids)
    return oracle.router_logits(model, token_ids)


def differences(llm: Any, model: Path, stream: Stream) -> dict[str, float]:
    result = capture(llm, random_prompts([3, 77, 1, 40]), max_tokens=4, ignore_eos=True, stream=stream)
    worst, first, cosine = 0.0, 0.0, 1.0
    for i in range(len(result)):
        expected = expected_rows(model, stream, result.sample_token_ids(i))
        assert result.layer_ids == sorted(expected), (result.layer_ids, sorted(expected))
        for layer_id, rows in result.sample(i).items():
            first = max(first, oracle.relative_difference(rows[:1], expected[layer_id][:1]))
            worst = max(worst, oracle.relative_difference(rows[1:], expected[layer_id][1:]))
            cosine = min(cosine, oracle.cosine(rows[1:], expected[layer_id][1:]))
    return {"worst": worst, "first": first, "1-cos": 1 - cosine}
