"""`SteeringSpec` and `VectorSpec`: what a caller asks for, checked as far as no model is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Literal, get_args

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.select import SelectSpec
from easysteer_data.steering.apply import coerce_apply
from easysteer_data.vectors import SteeringVector

Algorithm = Literal["direct", "erase"]
Conflict = Literal["sum", "error"]


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorSpec:
    """One vector, how it acts on the residual stream h after each of its blocks, and on which tokens.

    With v the vector of a layer, and u = v / |v|:

    - "direct": h + scale * v;
    - "erase": h - scale * (h . u) u; scale 1 leaves nothing of h along u, the length of v plays no part.

    Attributes:
        source: a steering vector's file: our safetensors or a GGUF control vector.
        data: the vector itself instead of a file: a SteeringVector, of which a step (direction times its own
            scale) is v, or layer id -> Tensor [width].
        algorithm: "direct" or "erase".
        scale: a finite number, negative ones too; 0 leaves the tokens untouched.
        layers: the vector's layers that act, None = all that it has.
        normalize: give v the length 1 first, so that `scale` is the length of what "direct" adds.
        apply: the tokens that are steered, an ApplySpec or its dict; None = all, of prompt and completion.

    Raises:
        SettingsError: not exactly one of source and data, or a value that can't be used.
    """

    source: str | Path | None = None
    data: SteeringVector | Mapping[int, torch.Tensor] | None = None
    algorithm: Algorithm = "direct"
    scale: float = 1.0
    layers: Sequence[int] | None = None
    normalize: bool = False
    apply: SelectSpec | Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if (self.source is None) == (self.data is None):
            raise SettingsError("VectorSpec: give either source, a vector's file, or data, the vector itself")
        if self.data is not None and not isinstance(self.data, SteeringVector | Mapping):
            raise SettingsError(
                f"VectorSpec: data is a SteeringVector or layer id -> Tensor, not {type(self.data).__name__}"
            )
        if isinstance(self.data, Mapping) and not self.data:
            raise SettingsError("VectorSpec: data={} holds no layer")
        if self.algorithm not in get_args(Algorithm):
            raise SettingsError(f"VectorSpec: algorithm is {self.algorithm!r}; choose direct or erase")
        if not _is_finite_number(self.scale):
            raise SettingsError(f"VectorSpec: scale is {self.scale!r}; it must be a finite number")
        if self.layers is not None and not self.layers:
            raise SettingsError("VectorSpec: layers=[] steers nothing; None means all of the vector's layers")
        object.__setattr__(self, "apply", coerce_apply(self.apply))


def _is_finite_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True, eq=False, kw_only=True)
class SteeringSpec:
    """Vectors that steer a prompt together.

    All vectors that meet at a layer and token act on the same h, whatever their order in the list: with
    "erase" of directions u_i and scales s_i, the projection of h on each u_i becomes (1 - s_i) times what it
    was, and then the sum of the "direct" vectors is added. Erased directions must differ: nearly parallel
    ones are refused.

    Attributes:
        vectors: at least one.
        conflict: "sum" lets several vectors meet at a layer and token as said above; "error" refuses that.
        force: use vectors that were made for another model of the same width.

    Raises:
        SettingsError: there is no vector, or a value that can't be used.
    """

    vectors: Sequence[VectorSpec]
    conflict: Conflict = "sum"
    force: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.vectors, VectorSpec) or not all(isinstance(v, VectorSpec) for v in self.vectors):
            raise SettingsError("SteeringSpec: vectors is a list of VectorSpec")
        if not self.vectors:
            raise SettingsError("SteeringSpec: vectors=[] steers nothing; leave steering out instead")
        if self.conflict not in get_args(Conflict):
            raise SettingsError(f"SteeringSpec: conflict is {self.conflict!r}; choose sum or error")
        object.__setattr__(self, "vectors", tuple(self.vectors))
