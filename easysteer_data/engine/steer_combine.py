"""Several vectors that meet at one layer and token, made into one action. Linear algebra; knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from easysteer_data.engine.steer_wire import SteerVector
from easysteer_data.errors import SettingsError

MAX_ERASES = 4  # directions that can be erased at one layer and token

# Smallest singular value of the erased unit directions; below it float32 rounding is blown up a thousandfold.
_MIN_INDEPENDENCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """`h + added + sum over k of (h . reads[k]) * writes[k]`, all terms from the same h.

    Attributes:
        added: float32 [width], None = nothing.
        reads: float32 [n, width], the erased unit directions; n is at most MAX_ERASES.
        writes: float32 [n, width].
    """

    added: torch.Tensor | None
    reads: torch.Tensor
    writes: torch.Tensor


def combine(vectors: Sequence[SteerVector], layer_id: int, *, exclusive: bool) -> Action | None:
    """Return what the vectors do together at a layer, None if none of them acts there.

    The erased directions U with scales s become writes W = -(U's dual basis) * s, so that the projection on
    each u_i becomes (1 - s_i) times what it was, whatever their order; of one direction W is -s u.

    Raises:
        SettingsError: they must not meet, more than MAX_ERASES directions are erased, or these are nearly
            dependent.
    """
    here = [vector for vector in vectors if layer_id in vector.steps]
    if not here:
        return None
    if exclusive and len(here) > 1:
        raise SettingsError(
            f"layer {layer_id}: {len(here)} vectors meet at one token, which conflict='error' forbids; "
            "give them other layers or tokens, or choose conflict='sum'"
        )
    steps = [(vector, vector.steps[layer_id].double()) for vector in here]
    adds = [vector.scale * step for vector, step in steps if vector.algorithm == "direct"]
    erased = [(vector.scale, step) for vector, step in steps if vector.algorithm == "erase"]
    added = torch.stack(adds).sum(0).float() if adds else None
    if not erased:
        empty = steps[0][1].new_empty(0, len(steps[0][1])).float()
        return Action(added, empty, empty)
    if len(erased) > MAX_ERASES:
        raise SettingsError(
            f"layer {layer_id}: {len(erased)} vectors erase at one token; {MAX_ERASES} can be erased at once"
        )
    directions = torch.stack([step / step.norm() for _, step in erased])
    independence = float(torch.linalg.svdvals(directions)[-1])
    if independence < _MIN_INDEPENDENCE:
        raise SettingsError(
            f"layer {layer_id}: the erased directions are nearly dependent (smallest singular value "
            f"{independence:.1e}); leave one of them out"
        )
    dual = torch.linalg.solve(directions @ directions.T, directions)
    scales = torch.tensor([scale for scale, _ in erased], dtype=torch.float64)
    return Action(added, directions.float(), (-scales[:, None] * dual).float())
