"""Where a model's streams can be read: finds the modules and puts a tap behind each.

Knows module names and classes of vLLM models; does not know requests, steps or shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from easysteer_data.engine import ops
from easysteer_data.engine.summing_norms import norms_behind
from easysteer_data.errors import UnsupportedEngineError
from easysteer_data.types import Stream

# A decoder's list of blocks goes by one of these names in every vLLM text model.
_BLOCK_LISTS = ("layers", "h", "blocks")
_ATTENTION_CLASSES = {"Attention", "MLAAttention"}
# What follows an attention, beside it in the same parent, goes by one of these names.
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "wo", "linear_proj", "proj")
_GATE_CLASSES = {"GateLinear"}
# Before vLLM had this class, a router was a plain linear layer beside its experts, by one of these names.
_GATES, _LINEAR_CLASSES = ("gate", "router"), {"ReplicatedLinear", "Linear"}
# Blocks of experts that multiply by such a layer's weights and never call it.
_UNCALLED_GATES = {"Param2MoEMoEBlock"}
# Blocks that add the residual themselves and still return a pair: its second entry is an older sum.
_SUMMING_BLOCKS = {
    "CohereCompassDecoderLayer",
    "CohereDecoderLayer",
    "Cohere2MoeDecoderLayer",
    "Exaone4DecoderLayer",
    "GraniteMoeHybridAttentionDecoderLayer",
    "GraniteMoeHybridMambaDecoderLayer",
    "HyperCLOVAXDecoderLayer",
    "MuseGlimmerDecoderLayer",
    "PhiMoEDecoderLayer",
    "StablelmDecoderLayer",
}
# A switch has 64 bytes to itself: a compiled graph copies an input whose address is not aligned as it was
# when the graph was traced, and would read, and tell of, a copy.
SWITCH_WORDS = 16


@dataclass(frozen=True, slots=True)
class TapPoint:
    """One module where a stream's rows pass.

    Attributes:
        layer_id: 0-based decoder block.
        module: the module; the rows are tensors of [..., width] that it takes or gives.
        width: values per row on this rank.
        reads: which of the module's tensors: its (first) "input", its (first) "output", or the "sum" of
            the (hidden, residual) pair that it gives; one tensor alone is its own sum.
        layout: for attention heads, num_heads and head_size on this rank.
        summed_by: of a "sum", a module that comes next and gives it as the second of its outputs.
    """

    layer_id: int
    module: nn.Module
    width: int
    reads: Literal["input", "output", "sum"]
    layout: Mapping[str, int] | None = None
    summed_by: nn.Module | None = None


class TapGroup:
    """The buffers of one stream, at fixed addresses; the layers that a capture asks for share them.

    Attributes:
        layer_ids: true layer ids, ascending; place j of `switches` belongs to layer_ids[j].
        rows: [n_layers, n_slots, width]; written by the taps during a forward pass, the layers that a capture
            asks for at the first places.
        peaks: float32 [n_layers, n_slots], largest absolute value of each of these rows.
        switches: int32 [n_layers, SWITCH_WORDS], of which the first word is a layer's switch, see `ops.tap`.
    """

    def __init__(
        self, points: Sequence[TapPoint], n_slots: int, dtype: torch.dtype, slot_map: torch.Tensor
    ) -> None:
        widths = sorted({point.width for point in points})
        if len(widths) != 1:
            raise UnsupportedEngineError(
                f"layers of different widths {widths} can't be captured together; open the engine with "
                "`layers=` of one width"
            )
        self.layer_ids = tuple(point.layer_id for point in points)
        self.width = widths[0]
        self.layouts = {point.layer_id: dict(point.layout) for point in points if point.layout is not None}
        self._n_wanted = 0
        device = slot_map.device
        self.rows = torch.zeros(len(points), n_slots, self.width, dtype=dtype, device=device)
        self.peaks = torch.full((len(points), n_slots), torch.nan, device=device)
        self.switches = torch.full((len(points), SWITCH_WORDS), -1, dtype=torch.int32, device=device)
        for switch, point in zip(self._each_switch(), points, strict=True):
            _attach(
                point, partial(ops.tap, slot_map=slot_map, switch=switch, rows=self.rows, peaks=self.peaks)
            )

    def _each_switch(self) -> list[torch.Tensor]:
        return [words[:1] for words in self.switches]

    def switch_on(self, layer_ids: Sequence[int]) -> None:
        """Turn on these layers, in this order, and no others."""
        self._n_wanted = len(layer_ids)
        switches = torch.full(self.switches.shape, -1, dtype=torch.int32)
        for place, layer_id in enumerate(layer_ids):
            switches[self.layer_ids.index(layer_id), 0] = place
        self.switches.copy_(switches)
        self.peaks.fill_(torch.nan)

    def switch_off(self) -> None:
        """Make every tap of the stream return at once."""
        self.switches.fill_(-1)
        for switch in self._each_switch():
            ops.tapped.pop(switch.data_ptr(), None)

    def listen(self, layer_ids: Sequence[int], when_tapped: Callable[[int], None]) -> None:
        """Have a function called with the place of each of these layers when its rows of a step are written.

        On a GPU the write is then on its way, in the current stream. Replayed CUDA graphs call nothing.
        """
        switches = self._each_switch()
        for place, layer_id in enumerate(layer_ids):
            switch = switches[self.layer_ids.index(layer_id)]
            ops.tapped[switch.data_ptr()] = partial(when_tapped, place)

    def rows_at(self, first: int, n: int) -> torch.Tensor:
        """Rows of n slots, [wanted layers, n, width], a view."""
        return self.rows[: self._n_wanted, first : first + n]

    def peaks_at(self, first: int, n: int) -> torch.Tensor:
        """Largest absolute values of n slots, [wanted layers, n], a view."""
        return self.peaks[: self._n_wanted, first : first + n]


def _attach(point: TapPoint, tap_into: Callable[[torch.Tensor, torch.Tensor | None], None]) -> None:
    def take(first: torch.Tensor, residual: torch.Tensor | None = None) -> None:
        # The Transformers backend gives [1, n_tokens, width].
        tap_into(first.view(-1, point.width), None if residual is None else residual.view(-1, point.width))

    def before(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        take(inputs[0])

    def after(_module: nn.Module, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        if not isinstance(output, tuple):
            take(output)
        elif point.reads == "sum":
            # A pair is (hidden, residual): the block leaves the last addition to the next block's fused norm.
            take(output[0], output[1])
        else:
            take(output[0])

    def after_sum(_module: nn.Module, _inputs: object, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        take(output[1])

    if point.summed_by is not None:
        point.summed_by.register_forward_hook(after_sum)
    elif point.reads == "input":
        point.module.register_forward_pre_hook(before)
    else:
        point.module.register_forward_hook(after)


def find_blocks(model: nn.Module) -> dict[int, nn.Module]:
    """Return the text decoder's blocks by true layer id; blocks of other pipeline ranks are left out.

    Raises:
        UnsupportedEngineError: no list of decoder blocks was found.
    """
    return _find_blocks(model)[1]


def _find_blocks(model: nn.Module) -> tuple[nn.Module, dict[int, nn.Module]]:
    """The module whose blocks they are, and the blocks."""
    lists = [
        (owner, child)
        for owner in _text_model(model).modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.ModuleList) and name in _BLOCK_LISTS
    ]
    if not lists:
        raise UnsupportedEngineError(
            f"{type(model).__name__}: no list of decoder blocks named {', '.join(_BLOCK_LISTS)} was found"
        )
    owner, blocks = max(lists, key=lambda found: len(found[1]))
    return owner, {i: b for i, b in enumerate(blocks) if type(b).__name__ != "PPMissingLayer"}


def _text_model(model: nn.Module) -> nn.Module:
    """The language model inside a multimodal one, so that a vision tower's blocks are not taken."""
    getter = getattr(model, "get_language_model", None)
    inner = getter() if callable(getter) else model
    return inner if isinstance(inner, nn.Module) else model


def find_points(model: nn.Module, stream: Stream, hidden_size: int) -> list[TapPoint]:
    """Return the stream's tap points, ascending by layer id; empty where the model has none.

    Raises:
        UnsupportedEngineError: the model has the stream, but not where it can be read; names the model.
    """
    points = []
    owner, blocks = _find_blocks(model)
    norms = norms_behind(owner, blocks)
    for layer_id, block in blocks.items():
        try:
            points.append(_point(layer_id, block, norms.get(layer_id), stream, hidden_size))
        except UnsupportedEngineError as error:
            raise UnsupportedEngineError(f"{type(model).__name__}, layer {layer_id}: {error}") from None
    found = [point for point in points if point is not None]
    # So does the Transformers backend of vLLM 0.26.
    if stream == "attention_heads" and not found and getattr(model, "attention_instances", None):
        raise UnsupportedEngineError(
            f"{type(model).__name__} keeps its attention outside its blocks in this vLLM, so attention_heads "
            "can't be read; a later vLLM has it in them"
        )
    return found


def _point(
    layer_id: int, block: nn.Module, norm_behind: nn.Module | None, stream: Stream, hidden_size: int
) -> TapPoint | None:
    if stream == "router_logits":
        return _gate_point(layer_id, block)
    if stream == "attention_heads":
        return _heads_point(layer_id, block)
    if _is_one_of(block, _SUMMING_BLOCKS):
        return TapPoint(layer_id, block, hidden_size, "output")
    return TapPoint(layer_id, block, hidden_size, "sum", summed_by=norm_behind)


def _gate_point(layer_id: int, block: nn.Module) -> TapPoint | None:
    modules = dict(block.named_modules())
    # The expert runner may multiply by its own copy of the gate's weights and never call the gate.
    if any(getattr(module, "_fse_fuse_gate", False) for module in modules.values()):
        raise UnsupportedEngineError(
            "the router gate is fused with the shared expert's gate, so router_logits can't be read; "
            "open the engine with shared expert fusion switched off"
        )
    gates = [module for module in modules.values() if _is_one_of(module, _GATE_CLASSES)]
    parents = [name.rpartition(".")[0] for name in modules if name.rpartition(".")[2] == "experts"]
    for parent in parents:
        gates = gates or _linear_gates(modules[parent])
    if not gates and parents:
        raise UnsupportedEngineError(
            f"there are experts, but no linear layer named {' or '.join(_GATES)} beside them gives their "
            "router's logits, so router_logits can't be read"
        )
    if not gates:
        return None
    configs = [getattr(module, "config", None) for module in modules.values()]
    if any(getattr(config, "moe_router_logit_softcapping", None) for config in configs):
        raise UnsupportedEngineError("the router's logits are capped behind it and can't be read there")
    width = getattr(gates[0], "output_size", None) or gates[0].out_features
    return TapPoint(layer_id, gates[0], int(width), "output")


def _linear_gates(parent: nn.Module) -> list[nn.Module]:
    """The one linear layer of a router that is a child of the experts' parent; none if it is not clear."""
    routers = [child for name, child in parent.named_children() if name in _GATES]
    layers = [m for router in routers for m in router.modules() if type(m).__name__ in _LINEAR_CLASSES]
    return layers if len(layers) == 1 and type(parent).__name__ not in _UNCALLED_GATES else []


def _heads_point(layer_id: int, block: nn.Module) -> TapPoint | None:
    # The projection's input, not the attention's output: some models gate, slice or normalise in between.
    for parent in block.modules():
        children = dict(parent.named_children())
        attention = next((m for m in children.values() if _is_one_of(m, _ATTENTION_CLASSES)), None)
        if attention is None:
            continue
        projection = next((children[name] for name in _OUTPUT_PROJECTIONS if name in children), None)
        if projection is None:
            raise UnsupportedEngineError(
                f"no output projection named {', '.join(_OUTPUT_PROJECTIONS)} follows the attention, "
                "so attention_heads can't be read"
            )
        # A projection that is not split over ranks has no size per partition.
        size = getattr(projection, "input_size_per_partition", None) or projection.input_size
        width = int(size)  # type: ignore[arg-type]
        n_heads = int(attention.num_heads)  # type: ignore[arg-type]
        return TapPoint(
            layer_id, projection, width, "input", {"num_heads": n_heads, "head_size": width // n_heads}
        )
    return None


def _is_one_of(module: nn.Module, class_names: set[str]) -> bool:
    return any(cls.__name__ in class_names for cls in type(module).__mro__)
