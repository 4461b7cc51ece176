"""Where a model's streams can be read: finds the modules and puts a tap behind each.

Knows module names and classes of vLLM models; does not know requests, steps or shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from easysteer_data.engine.ops import tap
from easysteer_data.errors import UnsupportedEngineError
from easysteer_data.types import Stream

# A decoder's list of blocks goes by one of these names in every vLLM text model.
_BLOCK_LISTS = ("layers", "h", "blocks")
_ATTENTION_CLASSES = {"Attention", "MLAAttention", "MultiHeadLatentAttentionWrapper"}
_GATE_CLASS = "GateLinear"


@dataclass(frozen=True, slots=True)
class TapPoint:
    """One module whose output is a stream's row.

    Attributes:
        layer_id: 0-based decoder block.
        module: the module; its output is [n_tokens, width], or a (hidden, residual) pair to be added.
        width: values per row on this rank.
        layout: for attention heads, num_heads and head_size on this rank.
    """

    layer_id: int
    module: nn.Module
    width: int
    layout: Mapping[str, int] | None = None


class TapGroup:
    """The buffers of one stream: one row buffer and one switch a layer, at fixed addresses.

    Attributes:
        layer_ids: true layer ids, ascending; place j of `rows` and `switches` belongs to layer_ids[j].
        rows: [n_layers, capacity, width], written by the taps during a forward pass.
        switches: int32 [n_layers, 1], 1 = this layer is wanted.
    """

    def __init__(
        self, points: Sequence[TapPoint], capacity: int, dtype: torch.dtype, slot_map: torch.Tensor
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
        device = slot_map.device
        self.rows = torch.zeros(len(points), capacity, self.width, dtype=dtype, device=device)
        self.switches = torch.zeros(len(points), 1, dtype=torch.int32, device=device)
        for place, point in enumerate(points):
            _attach(point.module, slot_map, self.switches[place], self.rows[place])

    def switch_on(self, layer_ids: Sequence[int]) -> torch.Tensor:
        """Turn on these layers and no others; return their places, int64 [n]."""
        places = torch.tensor([self.layer_ids.index(layer_id) for layer_id in layer_ids])
        wanted = torch.zeros(len(self.layer_ids), 1, dtype=torch.int32)
        wanted[places] = 1
        self.switches.copy_(wanted)
        return places.to(self.rows.device)

    def switch_off(self) -> None:
        """Make every tap of the stream return at once."""
        self.switches.zero_()


def _attach(module: nn.Module, slot_map: torch.Tensor, switch: torch.Tensor, rows: torch.Tensor) -> None:
    def hook(_module: nn.Module, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        # A pair is (hidden, residual): the block leaves the last addition to the next block's fused norm.
        # Linear layers return (output, bias): their second entry is None.
        if isinstance(output, tuple):
            hidden, residual = output[0], output[1]
        else:
            hidden, residual = output, None
        tap(hidden.view(-1, hidden.shape[-1]), residual, slot_map, switch, rows)

    module.register_forward_hook(hook)


def find_blocks(model: nn.Module) -> dict[int, nn.Module]:
    """Return the text decoder's blocks by true layer id; blocks of other pipeline ranks are left out.

    Raises:
        UnsupportedEngineError: no list of decoder blocks was found.
    """
    root = _text_model(model)
    lists = [
        module
        for name, module in root.named_modules()
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in _BLOCK_LISTS
    ]
    if not lists:
        raise UnsupportedEngineError(
            f"{type(model).__name__}: no list of decoder blocks named {', '.join(_BLOCK_LISTS)} was found"
        )
    blocks = max(lists, key=len)
    return {i: block for i, block in enumerate(blocks) if type(block).__name__ != "PPMissingLayer"}


def _text_model(model: nn.Module) -> nn.Module:
    """The language model inside a multimodal one, so that a vision tower's blocks are not taken."""
    getter = getattr(model, "get_language_model", None)
    inner = getter() if callable(getter) else model
    return inner if isinstance(inner, nn.Module) else model


def find_points(model: nn.Module, stream: Stream, hidden_size: int) -> list[TapPoint]:
    """Return the stream's tap points, ascending by layer id; empty where the model has none."""
    blocks = find_blocks(model)
    if stream == "hidden_states":
        return [TapPoint(i, block, hidden_size) for i, block in blocks.items()]
    find = _gate_point if stream == "router_logits" else _heads_point
    points = (find(i, block) for i, block in blocks.items())
    return [point for point in points if point is not None]


def _gate_point(layer_id: int, block: nn.Module) -> TapPoint | None:
    for module in block.modules():
        if any(cls.__name__ == _GATE_CLASS for cls in type(module).__mro__):
            return TapPoint(layer_id, module, int(module.output_size))  # type: ignore[arg-type]
    return None


def _heads_point(layer_id: int, block: nn.Module) -> TapPoint | None:
    for module in block.modules():
        if type(module).__name__ in _ATTENTION_CLASSES:
            n_heads = int(module.num_heads)  # type: ignore[arg-type]
            size = getattr(module, "v_head_dim", None) or getattr(module, "head_size_v", module.head_size)
            head_size = int(size)  # type: ignore[arg-type]
            width = n_heads * head_size
            return TapPoint(layer_id, module, width, {"num_heads": n_heads, "head_size": head_size})
    return None
