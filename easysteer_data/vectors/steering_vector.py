"""A steering vector: a direction and a scale for each layer, and where they come from. Knows no file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.shards import fingerprint_of

_UNIT_TOLERANCE = 1e-4  # of a direction's length; float32 rounding stays a hundred times below


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorProvenance:
    """Where a steering vector comes from; what another tool's file does not tell is empty or None.

    Attributes:
        estimator: name of the estimator.
        settings: the estimator's settings.
        model: name of the model, for people.
        model_fingerprint: of its config and weights, see `model_fingerprint`; None where it is not known.
        stream: the stream whose rows it was fitted on.
        layer_convention: what a row of layer l is, in words.
        data_set: name of the corpus, for people.
        data_fingerprint: of the run that the rows came from.
        selection: which rows it was fitted on.
        best_layer: the layer that did best on the validation split, None where that is not known.
        sign: what the directions point to.
    """

    estimator: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    model_fingerprint: str | None = None
    stream: str = "hidden_states"
    layer_convention: str = ""
    data_set: str = ""
    data_fingerprint: str | None = None
    selection: Mapping[str, object] = field(default_factory=dict)
    best_layer: int | None = None
    sign: str = ""


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """Layer id -> unit direction and scale; `scale * direction` is one step towards the positive class.

    Attributes:
        directions: layer id -> float32 [width] of length 1, ascending; 0-based decoder blocks, and the
            direction lies among the rows that the block puts out.
        scales: layer id -> length of a step, above 0, in the units of the rows.
        provenance: where it comes from.

    Raises:
        SettingsError: there is no layer, layers differ in width or have no scale, or a direction is not a
            finite vector of length 1.
    """

    directions: Mapping[int, torch.Tensor]
    scales: Mapping[int, float]
    provenance: VectorProvenance = field(default_factory=VectorProvenance)

    def __post_init__(self) -> None:
        if not self.directions or set(self.directions) != set(self.scales):
            raise SettingsError(
                f"a steering vector needs a direction and a scale of the same layers, found directions of "
                f"{sorted(self.directions)} and scales of {sorted(self.scales)}"
            )
        layer_ids = sorted(self.directions)
        if layer_ids[0] < 0:
            raise SettingsError(f"a steering vector's layers are counted from 0, found {layer_ids[0]}")
        width = len(self.directions[layer_ids[0]])
        for layer_id in layer_ids:
            _check_layer(layer_id, self.directions[layer_id], self.scales[layer_id], width)
        directions = {layer_id: self.directions[layer_id].detach().cpu().clone() for layer_id in layer_ids}
        object.__setattr__(self, "directions", MappingProxyType(directions))
        scales = {layer_id: float(self.scales[layer_id]) for layer_id in layer_ids}
        object.__setattr__(self, "scales", MappingProxyType(scales))

    def __repr__(self) -> str:
        origin = self.provenance
        layers = f"{len(self.layer_ids)} layers {self.layer_ids[0]} to {self.layer_ids[-1]}"
        return (
            f"SteeringVector({layers} of width {self.width}; {origin.estimator or 'unknown estimator'}, "
            f"{origin.model or 'unknown model'}, best layer {origin.best_layer})"
        )

    @classmethod
    def of_steps(cls, steps: Mapping[int, torch.Tensor], provenance: VectorProvenance) -> SteeringVector:
        """Divide steps, layer id -> [width] of any length above 0, into direction and scale."""
        scales = {layer_id: float(step.double().norm()) for layer_id, step in steps.items()}
        directions = {
            layer_id: (step.double() / scales[layer_id]).float() for layer_id, step in steps.items()
        }
        return cls(directions, scales, provenance)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Its layers, ascending."""
        return tuple(self.directions)

    @property
    def width(self) -> int:
        """Elements of a direction."""
        return len(next(iter(self.directions.values())))

    def step(self, layer_id: int) -> torch.Tensor:
        """`scale * direction` of a layer, float32 [width]."""
        return self.directions[layer_id] * self.scales[layer_id]

    def at(self, layer_ids: Collection[int]) -> SteeringVector:
        """The same vector for some of its layers; SettingsError names those that it does not have."""
        if missing := sorted(set(layer_ids) - set(self.layer_ids)):
            raise SettingsError(
                f"the steering vector has no layer {missing[0]}, only {', '.join(map(str, self.layer_ids))}"
            )
        return replace(
            self,
            directions={layer_id: self.directions[layer_id] for layer_id in layer_ids},
            scales={layer_id: self.scales[layer_id] for layer_id in layer_ids},
        )

    def check_fits(self, model_fingerprint: str | None, width: int) -> None:
        """Refuse a model that the vector was not made for.

        Args:
            model_fingerprint: the model's, see `model_fingerprint`; where it or the vector's is None, only
                widths are compared.
            width: elements of the model's rows.

        Raises:
            SettingsError: the fingerprints or the widths differ; the message tells both.
        """
        own = self.provenance.model_fingerprint
        if width != self.width:
            raise SettingsError(
                f"the steering vector's directions have width {self.width}, the model's rows {width}: it was "
                f"made for another model ({self.provenance.model or 'unknown'})"
            )
        if own is not None and model_fingerprint is not None and own != model_fingerprint:
            raise SettingsError(
                f"the steering vector was made for the model {self.provenance.model or 'unknown'} of "
                f"fingerprint {own}, but this model's is {model_fingerprint}; load it with force=True to use "
                "it all the same"
            )


def model_fingerprint(sha256: Mapping[str, str]) -> str:
    """One hash (64 hex digits) for a model's files, file name -> sha256, as ModelFacts and runs list them."""
    return fingerprint_of(sha256)


def _check_layer(layer_id: int, direction: torch.Tensor, scale: float, width: int) -> None:
    if direction.dtype != torch.float32 or direction.shape != (width,):
        raise SettingsError(
            f"layer {layer_id}: a direction must be float32 [{width}], "
            f"found {str(direction.dtype).removeprefix('torch.')} {list(direction.shape)}"
        )
    length = float(direction.double().norm())
    if not abs(length - 1) <= _UNIT_TOLERANCE:
        raise SettingsError(f"layer {layer_id}: a direction must have length 1, found {length}")
    if not (0 < scale < math.inf):
        raise SettingsError(f"layer {layer_id}: a scale must be a finite number above 0, found {scale}")
