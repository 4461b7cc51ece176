"""Where and how far a trial steers: its points, and the spec of each. Knows the vector, no prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from easysteer_data.errors import SettingsError
from easysteer_data.steer_options import SteerSettings
from easysteer_data.steering import SteeringSpec, VectorSpec
from easysteer_data.vectors import SteeringVector

SCALE_UNITS = {
    "direct": "one step of the vector, as long as the classes are apart along it in that layer",
    "erase": "the loss of all of a row's part along the direction",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A cell of the grid.

    Attributes:
        layers: decoder blocks that are steered, none at scale 0.
        scale: how far.
    """

    layers: tuple[int, ...]
    scale: float


BASELINE = Point((), 0.0)


@dataclass(frozen=True)
class Grid:
    """Curves of scales.

    Attributes:
        layer_sets: the decoder blocks of each curve.
        scales: ascending, with 0.
    """

    layer_sets: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]

    @classmethod
    def of(cls, settings: SteerSettings, vector: SteeringVector) -> Grid:
        """The grid that the settings ask for.

        Raises:
            SettingsError: the vector lacks a layer, or has no best one where none is asked for.
        """
        asked: Sequence[int | tuple[int, ...]] | None = settings.layers
        if asked is None:
            asked = (best_layer(vector, "steer.layers"),)
        sets = [(entry,) if isinstance(entry, int) else tuple(sorted(set(entry))) for entry in asked]
        vector.at({layer_id for layers in sets for layer_id in layers})
        scales = {float(scale) for scale in settings.scales}
        return cls(tuple(dict.fromkeys(sets)), tuple(sorted(scales | {0.0})))

    @property
    def points(self) -> list[Point]:
        """Every cell once: the one without steering, then curve by curve, ascending by scale."""
        steered = [Point(layers, scale) for layers in self.layer_sets for scale in self.scales if scale]
        return [BASELINE, *steered]


def best_layer(vector: SteeringVector, key: str) -> int:
    """The vector's best layer; SettingsError names the key to give where it is not known."""
    if vector.provenance.best_layer is None:
        raise SettingsError(
            f"the steering vector does not tell its best layer; give {key}, of "
            f"{', '.join(map(str, vector.layer_ids))}"
        )
    return vector.provenance.best_layer


def spec_of(point: Point, vector: SteeringVector, settings: SteerSettings) -> SteeringSpec | None:
    """What `generate` steers with at a point, None without steering."""
    if point == BASELINE:
        return None
    one = VectorSpec(
        data=vector.at(point.layers),
        algorithm=settings.algorithm,
        scale=point.scale,
        apply=settings.apply,
    )
    return SteeringSpec(vectors=[one], force=settings.force)
