"""The steering op's CUDA kernel, in Triton: no sync and no allocation, so CUDA graphs can hold it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _steer_kernel(
    hidden,
    residual,
    combos,
    switch,
    vectors,
    adds,
    reads,
    writes,
    width,
    hidden_stride,
    residual_stride,
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803 - Triton's constants are in capitals
    N_ERASES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    if tl.load(switch) != 0:
        token = tl.program_id(0).to(tl.int64)
        combo = tl.load(combos + token).to(tl.int64)
        if combo >= 0:
            add = tl.load(adds + combo).to(tl.int64)
            first_read = tl.load(reads + combo * N_ERASES)
            if (add >= 0) | (first_read >= 0):
                column = tl.arange(0, BLOCK)
                inside = column < width
                place = hidden + token * hidden_stride + column
                value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
                stream = value
                if HAS_RESIDUAL:
                    older = tl.load(residual + token * residual_stride + column, mask=inside, other=0.0)
                    stream = value + older.to(tl.float32)
                # A masked load of row -1 touches no memory and gives zeros.
                value += tl.load(vectors + add * width + column, mask=inside & (add >= 0), other=0.0)
                for k in tl.static_range(N_ERASES):
                    read = tl.load(reads + combo * N_ERASES + k).to(tl.int64)
                    write = tl.load(writes + combo * N_ERASES + k).to(tl.int64)
                    used = inside & (read >= 0)
                    direction = tl.load(vectors + read * width + column, mask=used, other=0.0)
                    along = tl.sum(stream * direction, axis=0)
                    value += along * tl.load(vectors + write * width + column, mask=used, other=0.0)
                tl.store(place, value.to(hidden.dtype.element_ty), mask=inside)


def launch_steer(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    combos: torch.Tensor,
    switch: torch.Tensor,
    vectors: torch.Tensor,
    adds: torch.Tensor,
    reads: torch.Tensor,
    writes: torch.Tensor,
) -> None:
    """Run the kernel over all tokens of the batch, padding included; shapes as in `steer_op.steer`.

    A program holds a whole token, since an erased projection needs all its columns.
    """
    n_tokens, width = hidden.shape
    if n_tokens == 0:
        return
    block = triton.next_power_of_2(width)
    _steer_kernel[(n_tokens,)](
        hidden,
        hidden if residual is None else residual,
        combos,
        switch,
        vectors,
        adds,
        reads,
        writes,
        width,
        hidden.stride(0),
        0 if residual is None else residual.stride(0),
        residual is not None,
        reads.shape[1],
        block,
        num_warps=4 if block <= 2048 else 16,
    )
