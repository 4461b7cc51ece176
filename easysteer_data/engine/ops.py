"""The tap: a custom op that copies chosen rows of a layer's output into a buffer, and measures them.

It is an op of torch's library, so that torch.compile traces it and CUDA graphs record it. Knows tensors only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Address of a layer's switch -> called when its tap wrote rows; not where a CUDA graph replays it.
tapped: dict[int, Callable[[], None]] = {}

_LIBRARY = torch.library.Library("easysteer_data", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "tap(Tensor hidden, Tensor? residual, Tensor slot_map, Tensor switch, Tensor(a!) rows, Tensor(b!) peaks)"
    " -> ()"
)


def _tap_cpu(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    slot_map: torch.Tensor,
    switch: torch.Tensor,
    rows: torch.Tensor,
    peaks: torch.Tensor,
) -> None:
    place = int(switch)
    if place < 0:
        return
    slots = slot_map[: hidden.shape[0]]
    tokens = (slots >= 0).nonzero().squeeze(1)
    if tokens.shape[0] == 0:
        return
    values = hidden.index_select(0, tokens)
    if residual is not None:
        values = values + residual.index_select(0, tokens)
    wanted = slots.index_select(0, tokens).long()
    rows[place].index_copy_(0, wanted, values.to(rows.dtype))
    peaks[place].index_copy_(0, wanted, values.abs().amax(-1).float())
    _tell(switch)


def _tap_meta(*_: object) -> None:
    """Nothing to infer: the op returns nothing."""


def _tap_cuda(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    slot_map: torch.Tensor,
    switch: torch.Tensor,
    rows: torch.Tensor,
    peaks: torch.Tensor,
) -> None:
    from easysteer_data.engine.tap_kernel import launch_tap  # needs Triton: only where there is a GPU

    launch_tap(hidden, residual, slot_map, switch, rows, peaks)
    _tell(switch)


def _tell(switch: torch.Tensor) -> None:
    listener = tapped.get(switch.data_ptr())
    if listener is not None:
        listener()


for _implementation, _device in ((_tap_cpu, "CPU"), (_tap_cuda, "CUDA"), (_tap_meta, "Meta")):
    _LIBRARY.impl("tap", _implementation, _device)  # type: ignore[no-untyped-call]


def tap(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    slot_map: torch.Tensor,
    switch: torch.Tensor,
    rows: torch.Tensor,
    peaks: torch.Tensor,
) -> None:
    """Copy `hidden[t] + residual[t]` into rows[place, slot_map[t]] for every token t with a slot.

    Args:
        hidden: [n_tokens, width], the layer's output, padding included.
        residual: [n_tokens, width] or None where the layer returns one tensor.
        slot_map: int32 [max_tokens], the row's slot, -1 = not wanted.
        switch: int32 [1], this layer's place among the wanted ones, -1 = not wanted.
        rows: [n_places, n_slots, width], written in place.
        peaks: float32 [n_places, n_slots], the row's largest absolute value; NaN where it holds a NaN.
    """
    torch.ops.easysteer_data.tap(hidden, residual, slot_map, switch, rows, peaks)
