"""Rows of every architecture are those of Hugging Face, per layer and stream."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from torch import nn

from easysteer_data.engine.summing_norms import NORM_FIRST
from easysteer_data.engine.taps import find_points
from easysteer_data.errors import UnsupportedEngineError
from easysteer_data.hidden_states import CaptureResult, capture
from easysteer_data.types import Stream
from tests import oracle
from tests.hidden_states.test_capture_rows import random_prompts
from tests.tiny import save_tiny

DENSE: tuple[Stream, ...] = ("hidden_states", "attention_heads")
EXPERTS: tuple[Stream, ...] = (*DENSE, "router_logits")

# Four query heads of 32, three blocks. Large weights keep the blocks' share of the residual stream large.
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}
MIXED = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
GEMMA = GROUPED | {
    "head_dim": 32,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# vLLM's MLA on the CPU takes 512 + 64 latent values; a value head is smaller than a query head.
DEEPSEEK = SHAPE | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
# Where the processor has AMX, vLLM would take attention that computes in bfloat16 alone.
IN_FLOAT32 = {"attention_backend": "CPU_MLA"}
MAMBA2: dict[str, Any] = {
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
}


@dataclass(frozen=True)
class Case:
    """A tiny model, the streams that it has, the size of its (value) heads, what its engine needs."""

    model_type: str
    config: dict[str, Any]
    streams: tuple[Stream, ...] = DENSE
    head_size: int = 32
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "Llama": Case("llama", GROUPED),
    # vLLM alters the class for as long as this process lives: one that no other test makes.
    "Mistral, Hugging Face's blocks": Case(
        "mistral", GROUPED | {"sliding_window": None}, options={"model_impl": "transformers"}
    ),
    "Qwen2": Case("qwen2", GROUPED),
    "Qwen3": Case("qwen3", GROUPED | {"head_dim": 64}, head_size=64),
    "Gemma-2": Case("gemma2", GEMMA),
    "Gemma-3": Case("gemma3_text", GEMMA),
    "GPT-2": Case(
        "gpt2", {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 512, "initializer_range": 0.1}
    ),
    "OPT": Case("opt", SHAPE | {"ffn_dim": 192, "word_embed_proj_dim": 128, "init_std": 0.1}),
    "GPT-NeoX": Case("gpt_neox", SHAPE),
    "Phi-3": Case("phi3", GROUPED),
    "Cohere": Case("cohere", GROUPED),
    "StableLM": Case("stablelm", GROUPED),
    "Mixtral": Case("mixtral", MIXED | {"num_local_experts": 8}, EXPERTS),
    "Qwen3-MoE": Case(
        "qwen3_moe", MIXED | {"head_dim": 32, "num_experts": 8, "mlp_only_layers": [1]}, EXPERTS
    ),
    "OLMoE": Case("olmoe", MIXED | {"num_experts": 8}, EXPERTS),
    "DeepSeek-V2": Case(
        "deepseek_v2", DEEPSEEK | {"n_group": 1, "topk_group": 1}, EXPERTS, head_size=16, options=IN_FLOAT32
    ),
    "DeepSeek-V3": Case(
        "deepseek_v3",
        DEEPSEEK | {"n_group": 2, "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        EXPERTS,
        head_size=16,
        options=IN_FLOAT32,
    ),
    "Falcon-H1": Case("falcon_h1", GROUPED | MAMBA2 | {"mamba_d_ssm": 256}),
    "GraniteMoeHybrid": Case(
        "granitemoehybrid",
        MIXED
        | MAMBA2
        | {
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "shared_intermediate_size": 64,
        },
        EXPERTS,
    ),
    "Mamba2": Case(
        "mamba2",
        {
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "state_size": 16,
            "num_heads": 8,
            "head_dim": 32,
            "n_groups": 1,
        },
        ("hidden_states",),
    ),
}


READ_BEHIND_NORMS = {"Llama", "Qwen2", "Qwen3", "Phi-3", "Mixtral", "Qwen3-MoE", "OLMoE"}


def layers_read_behind_norms(worker: Any) -> list[int]:
    points = find_points(worker.model_runner.get_model(), "hidden_states", 128)
    return [point.layer_id for point in points if point.summed_by is not None]


def open_case(engines: Any, case: Case, folder: Path) -> Any:
    from transformers import AutoConfig
    from vllm import ModelRegistry

    # vLLM inspects each new model class in a child process, for 10 s and more; here it may import it.
    (name,) = AutoConfig.from_pretrained(folder).architectures
    ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
    return engines.get(folder, streams=case.streams, **case.options)


def expected_rows(model: Path, stream: Stream, token_ids: list[int]) -> dict[int, torch.Tensor]:
    if stream == "hidden_states":
        return dict(enumerate(oracle.block_outputs(model, token_ids)))
    if stream == "attention_heads":
        return oracle.head_outputs(model, token_ids)
    return oracle.router_logits(model, token_ids)


def assert_close(result: CaptureResult, expected: list[dict[int, torch.Tensor]]) -> None:
    for i, layers in enumerate(expected):
        assert result.layer_ids == sorted(layers)
        for layer_id, rows in result.sample(i).items():
            assert oracle.relative_difference(rows, layers[layer_id]) < 1e-4
            assert oracle.cosine(rows, layers[layer_id]) > 0.99999


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_hugging_face(engines: Any, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    save_tiny(tmp_path, case.model_type, **case.config)
    prompts = random_prompts([3, 77, 1, 40])
    read = [
        ids + oracle.greedy(tmp_path, ids, 3) for ids in (prompt["prompt_token_ids"] for prompt in prompts)
    ]
    # Before the engine is open: vLLM's Transformers backend alters Hugging Face's classes.
    expected = {stream: [expected_rows(tmp_path, stream, ids) for ids in read] for stream in case.streams}
    llm = open_case(engines, case, tmp_path)
    assert llm.collective_rpc(layers_read_behind_norms) == [[0, 1] if name in READ_BEHIND_NORMS else []]
    for stream in case.streams:
        result = capture(llm, prompts, max_tokens=4, ignore_eos=True, stream=stream)
        assert [result.sample_token_ids(i) for i in range(len(prompts))] == read
        assert_close(result, expected[stream])
        if stream == "attention_heads":
            layout = {"width": 4 * case.head_size, "num_heads": 4, "head_size": case.head_size}
            assert result.layouts == dict.fromkeys(result.layer_ids, layout)


@pytest.mark.parametrize("name", ["GPT-2", "Mixtral"])
def test_a_batch_equals_each_prompt_alone_bit_for_bit(engines: Any, tmp_path: Path, name: str) -> None:
    save_tiny(tmp_path, CASES[name].model_type, **CASES[name].config)
    llm = open_case(engines, CASES[name], tmp_path)
    prompts = random_prompts([9, 33, 60, 2, 17])
    for stream in CASES[name].streams:
        batch = capture(llm, prompts, stream=stream)
        for i, prompt in enumerate(prompts):
            alone = capture(llm, [prompt], stream=stream)
            for layer_id in batch.layer_ids:
                assert torch.equal(batch.sample(i)[layer_id], alone.rows(layer_id))


class Block(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class FusedRunner(nn.Module):
    """Marked as vLLM's expert runner marks itself when it multiplies by its own copy of the gate."""

    _fse_fuse_gate = True


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (FusedRunner(), "Block, layer 0: the router gate is fused"),
        (nn.Linear(4, 4), "Block, layer 0: there are experts, but no linear layer named gate or router"),
    ],
)
def test_a_router_that_can_not_be_read_is_refused_by_name(experts: nn.Module, message: str) -> None:
    model = Block(layers=nn.ModuleList([Block(mlp=Block(experts=experts))]))
    with pytest.raises(UnsupportedEngineError, match=message):
        find_points(model, "router_logits", 4)


@pytest.mark.parametrize("router", ["gate", "router"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_linear_layer_beside_the_experts_is_their_router(router: str, wrapped: bool) -> None:
    """As in vLLM 0.26, which gives most models no gate class of their own; DBRX wraps it once more."""
    linear = nn.Linear(4, 8)
    moe = Block(
        shared_expert_gate=nn.Linear(4, 1),
        experts=Block(w13=nn.Linear(4, 6)),
        **{router: Block(layer=linear) if wrapped else linear},
    )
    model = Block(layers=nn.ModuleList([Block(mlp=moe)]))
    (point,) = find_points(model, "router_logits", 4)
    assert point.module is linear
    assert (point.width, point.reads) == (8, "output")


class Param2MoEMoEBlock(Block):
    """Named as the block of vLLM 0.26 that multiplies by its gate's weights itself."""


class Capped(Block):
    """As Laguna's, whose logits are capped behind the gate."""

    config = SimpleNamespace(moe_router_logit_softcapping=2.0)


@pytest.mark.parametrize(
    ("moe", "message"),
    [
        (Block(experts=Block(), gate=nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 8))), "no linear layer"),
        (Param2MoEMoEBlock(experts=Block(), gate=nn.Linear(4, 8)), "no linear layer"),
        (Capped(experts=Block(), gate=nn.Linear(4, 8)), "are capped behind it"),
    ],
)
def test_a_layer_that_does_not_give_the_routers_logits_is_not_taken(moe: nn.Module, message: str) -> None:
    model = Block(layers=nn.ModuleList([Block(mlp=moe)]))
    with pytest.raises(UnsupportedEngineError, match=f"Block, layer 0: .*{message}"):
        find_points(model, "router_logits", 4)


def test_attention_that_lies_outside_the_blocks_is_told_of() -> None:
    """As in the Transformers backend of vLLM 0.26; such a model is not one without attention."""
    model = Block(layers=nn.ModuleList([Block(o_proj=nn.Linear(4, 4))]))
    assert find_points(model, "attention_heads", 4) == []
    model.attention_instances = {0: object()}  # type: ignore[assignment]
    with pytest.raises(UnsupportedEngineError, match="Block keeps its attention outside its blocks"):
        find_points(model, "attention_heads", 4)
    assert len(find_points(model, "hidden_states", 4)) == 1


def source_of(name: str, model_file: str) -> ast.ClassDef:
    """A class in a file of this vLLM's models."""
    path = Path(vllm.__file__).parent / "model_executor" / "models" / f"{model_file}.py"
    (found,) = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name)
    return found


def forward_of(found: ast.ClassDef) -> ast.AST:
    """The class's forward, nothing where it has none of its own."""
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    return next((node for node in functions if node.name == "forward"), ast.Pass())


@pytest.mark.parametrize("model_file", NORM_FIRST)
def test_blocks_whose_sum_the_next_norm_gives_begin_so_in_this_vllm(model_file: str) -> None:
    """The blocks' own source says it: the pair goes into the norm before anything else touches it."""
    begins = re.compile(
        r"if residual is None:\s+residual = hidden_states\s+"
        r"hidden_states = self\.input_layernorm\(hidden_states\)\s+else:\s+"
        r"\(?hidden_states, residual\)? = self\.input_layernorm\(hidden_states, residual\)"
    )
    forward = ast.unparse(forward_of(source_of(NORM_FIRST[model_file][1], model_file)))
    found = begins.search(forward)
    assert found
    assert "self." not in forward[: found.start()]


@pytest.mark.parametrize("model_file", NORM_FIRST)
def test_models_hand_a_blocks_pair_to_the_next_block_as_it_is(model_file: str) -> None:
    model = source_of(NORM_FIRST[model_file][0], model_file)
    while not (loops := [node for node in ast.walk(forward_of(model)) if isinstance(node, ast.For)]):
        (base,) = (base.id for base in model.bases if isinstance(base, ast.Name))  # runs its base's loop
        model_file = next(file for file, (name, _) in NORM_FIRST.items() if name == base)
        model = source_of(base, model_file)
    (loop,) = loops
    written = [
        ast.unparse(node)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr)
        and "hidden_states" in ast.unparse(node)
    ]
    assert len(written) == 1
    assert re.match(
        r"\(?hidden_states, residual\)? = layer\(positions, hidden_states, residual\b", written[0]
    )


def made_model(names: tuple[str, ...], module: str) -> nn.Module:
    """A model whose first name is its class's, and the others those of its blocks."""

    def init_block(self: nn.Module) -> None:
        nn.Module.__init__(self)
        self.input_layernorm = nn.Identity()

    def class_of(name: str, init: Any) -> Any:
        return type(name, (nn.Module,), {"__init__": init, "__module__": module})

    def init_model(self: nn.Module) -> None:
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(class_of(name, init_block)() for name in names[1:])

    model: nn.Module = class_of(names[0], init_model)()
    return model


@pytest.mark.parametrize(
    ("names", "module"),
    [
        (("OwnModel", *["LlamaDecoderLayer"] * 3), "vllm.model_executor.models.llama"),
        (("LlamaModel", *["LlamaDecoderLayer"] * 2, "OwnDecoderLayer"), "vllm.model_executor.models.llama"),
        (("LlamaModel", *["LlamaDecoderLayer"] * 3), "transformers.models.llama.modeling_llama"),
        (
            ("Qwen3MoeLLMModel", *["Qwen3MoeDecoderLayer"] * 3),
            "vllm.model_executor.models.qwen3_omni_moe_thinker",
        ),
    ],
)
def test_where_it_is_not_sure_that_a_norm_sums_the_pair_the_block_is_read(
    names: tuple[str, ...], module: str
) -> None:
    points = find_points(made_model(names, module), "hidden_states", 8)
    assert [point.summed_by for point in points] == [None, None, None]


def test_the_norm_of_the_next_block_is_read_and_the_last_block_itself() -> None:
    model = made_model(("LlamaModel", *["LlamaDecoderLayer"] * 3), "vllm.model_executor.models.llama")
    norms = [point.summed_by for point in find_points(model, "hidden_states", 8)]
    assert norms == [model.layers[1].input_layernorm, model.layers[2].input_layernorm, None]
