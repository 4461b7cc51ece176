"""What the driver tells a worker of steering: vectors and where they act, as tensors in safetensors bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors.torch import load, save

from easysteer_data.select import SelectSpec


@dataclass(frozen=True, slots=True, eq=False)
class SteerVector:
    """One vector, ready to act.

    Attributes:
        algorithm: "direct" adds scale * v, "erase" takes scale times the part along v away.
        scale: finite, not 0.
        select: the tokens on which it acts, None = all.
        steps: layer id -> v, float32 [width] on the CPU; of length 1 for "erase".
    """

    algorithm: Literal["direct", "erase"]
    scale: float
    select: SelectSpec | None
    steps: Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Vectors that act together on the prompts that name this recipe.

    Attributes:
        vectors: at least one.
        exclusive: whether it is an error that two of them meet at a layer and token.
    """

    vectors: tuple[SteerVector, ...]
    exclusive: bool = False

    @property
    def layer_ids(self) -> set[int]:
        """Layers at which any of its vectors acts."""
        return {layer_id for vector in self.vectors for layer_id in vector.steps}

    def to_wire(self) -> dict[str, Any]:
        """Return a dict of plain values and bytes that msgpack can carry."""
        tensors = {
            f"{i}.{layer_id}": step.contiguous()
            for i, vector in enumerate(self.vectors)
            for layer_id, step in vector.steps.items()
        }
        vectors = [
            {
                "algorithm": vector.algorithm,
                "scale": vector.scale,
                "select": None if vector.select is None else vector.select.to_wire(),
                "layers": list(vector.steps),
            }
            for vector in self.vectors
        ]
        return {"vectors": vectors, "exclusive": self.exclusive, "tensors": save(tensors)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Recipe:
        """Rebuild the recipe on the worker."""
        tensors = load(wire["tensors"])
        vectors = [
            SteerVector(
                given["algorithm"],
                given["scale"],
                None if given["select"] is None else SelectSpec.from_wire(given["select"]),
                {layer_id: tensors[f"{i}.{layer_id}"] for layer_id in given["layers"]},
            )
            for i, given in enumerate(wire["vectors"])
        ]
        return cls(tuple(vectors), wire["exclusive"])

    def digest(self) -> str:
        """Hash of all it says, 64 hex digits: recipes of one digest steer alike."""
        wire = self.to_wire()
        tensors = wire.pop("tensors")
        return hashlib.sha256(json.dumps(wire).encode() + b"\n" + tensors).hexdigest()


def recipes_to_wire(recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
    """Return the wire forms; a request names a recipe by its place in this list."""
    return [recipe.to_wire() for recipe in recipes]
