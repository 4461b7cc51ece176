"""The tap's CUDA kernel, in Triton: no sync and no allocation, so CUDA graphs can hold it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_MAX_PROGRAMS = 2048  # enough to fill a GPU; one a token would cost more where the layer is switched off


@triton.jit(do_not_specialize=["n_tokens"])
def _tap_kernel(
    hidden,
    residual,
    slot_map,
    switch,
    rows,
    peaks,
    n_tokens,
    n_slots,
    width,
    hidden_stride,
    residual_stride,
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803 - Triton's constants are in capitals
    BLOCK: tl.constexpr,  # noqa: N803
):
    place = tl.load(switch)
    if place >= 0:
        first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0)
        for turn in range(tl.cdiv(n_tokens - first, step)):
            token = first + turn * step
            slot = tl.load(slot_map + token).to(tl.int64)
            if slot >= 0:
                row = place.to(tl.int64) * n_slots + slot
                largest = tl.zeros([BLOCK], dtype=tl.float32)
                broken = tl.zeros([BLOCK], dtype=tl.int32)
                for start in range(0, width, BLOCK):
                    column = start + tl.arange(0, BLOCK)
                    inside = column < width
                    value = tl.load(hidden + token * hidden_stride + column, mask=inside, other=0.0)
                    if HAS_RESIDUAL:
                        value += tl.load(residual + token * residual_stride + column, mask=inside, other=0.0)
                    tl.store(rows + row * width + column, value, mask=inside)
                    size = tl.abs(value.to(tl.float32))
                    largest = tl.maximum(largest, size)
                    broken = tl.maximum(broken, (size != size).to(tl.int32))
                peak = tl.where(tl.max(broken, axis=0) > 0, float("nan"), tl.max(largest, axis=0))
                tl.store(peaks + row, peak)


def launch_tap(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    slot_map: torch.Tensor,
    switch: torch.Tensor,
    rows: torch.Tensor,
    peaks: torch.Tensor,
) -> None:
    """Run the kernel over all tokens of the batch, padding included; shapes as in `ops.tap`."""
    n_tokens, width = hidden.shape
    if n_tokens == 0:
        return
    _tap_kernel[(min(n_tokens, _MAX_PROGRAMS),)](
        hidden,
        hidden if residual is None else residual,
        slot_map,
        switch,
        rows,
        peaks,
        n_tokens,
        rows.shape[1],
        width,
        hidden.stride(0),
        0 if residual is None else residual.stride(0),
        residual is not None,
        _BLOCK,
    )
