"""The steering op: a custom op that changes chosen tokens of a layer's output in place.

It is an op of torch's library, so that torch.compile traces it and CUDA graphs record it. Knows tensors only.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("easysteer_data", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "steer(Tensor(a!) hidden, Tensor? residual, Tensor combos, Tensor switch, Tensor vectors, Tensor adds, "
    "Tensor reads, Tensor writes) -> ()"
)


def _steer_cpu(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    combos: torch.Tensor,
    switch: torch.Tensor,
    vectors: torch.Tensor,
    adds: torch.Tensor,
    reads: torch.Tensor,
    writes: torch.Tensor,
) -> None:
    if not int(switch):
        return
    combo_of = combos[: hidden.shape[0]]
    tokens = (combo_of >= 0).nonzero().squeeze(1)
    combo = combo_of.index_select(0, tokens)
    add, read = adds.index_select(0, combo), reads.index_select(0, combo)
    # A combo may have nothing to do at this layer: its tokens are not written either.
    here = ((add >= 0) | (read[:, 0] >= 0)).nonzero().squeeze(1)
    if here.shape[0] == 0:
        return
    tokens, combo, add, read = (index.index_select(0, here) for index in (tokens, combo, add, read))
    values = hidden.index_select(0, tokens).float()
    stream = values if residual is None else values + residual.index_select(0, tokens).float()
    changed = values + _rows(vectors, add)
    write = writes.index_select(0, combo)
    for k in range(reads.shape[1]):
        if int(read[:, k].max()) < 0:  # none erases more
            break
        along = (stream * _rows(vectors, read[:, k])).sum(-1, keepdim=True)
        changed += along * _rows(vectors, write[:, k])
    hidden.index_copy_(0, tokens, changed.to(hidden.dtype))


def _rows(vectors: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows [n, width] of the table, zeros where the index is -1."""
    return vectors.index_select(0, index.clamp(min=0)) * (index >= 0)[:, None]


def _steer_meta(*_: object) -> None:
    """Nothing to infer: the op returns nothing."""


def _steer_cuda(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    combos: torch.Tensor,
    switch: torch.Tensor,
    vectors: torch.Tensor,
    adds: torch.Tensor,
    reads: torch.Tensor,
    writes: torch.Tensor,
) -> None:
    from easysteer_data.engine.steer_kernel import launch_steer  # needs Triton: only where there is a GPU

    launch_steer(hidden, residual, combos, switch, vectors, adds, reads, writes)


for _implementation, _device in ((_steer_cpu, "CPU"), (_steer_cuda, "CUDA"), (_steer_meta, "Meta")):
    _LIBRARY.impl("steer", _implementation, _device)  # type: ignore[no-untyped-call]


def steer(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    combos: torch.Tensor,
    switch: torch.Tensor,
    vectors: torch.Tensor,
    adds: torch.Tensor,
    reads: torch.Tensor,
    writes: torch.Tensor,
) -> None:
    """Change every token t that has a combo c = combos[t]; h is hidden[t] + residual[t], all in float32.

    `hidden[t] += vectors[adds[c]] + sum over k of (h . vectors[reads[c, k]]) * vectors[writes[c, k]]`, terms
    of index -1 left out; rounded once to the dtype of `hidden`. Other tokens are not written.

    Args:
        hidden: [n_tokens, width], the layer's output, padding included; written in place.
        residual: [n_tokens, width] or None where the layer returns one tensor.
        combos: int32 [max_tokens], what is done to each token, -1 = nothing.
        switch: int32 [1], 0 = this layer is not steered.
        vectors: float32 [n_rows, width], of all layers.
        adds: int32 [n_combos], row of the vector that is added at this layer, -1 = none.
        reads: int32 [n_combos, n_erases], rows of the unit directions that are erased, -1 = none; used from
            place 0 on.
        writes: int32 [n_combos, n_erases], rows of what their projections are multiplied with.
    """
    torch.ops.easysteer_data.steer(hidden, residual, combos, switch, vectors, adds, reads, writes)
