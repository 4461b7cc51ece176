from __future__ import annotations

import pytest
import torch

from easysteer_data.errors import SettingsError
from easysteer_data.steer_options import SteerSettings
from easysteer_data.steer_trial.grid import BASELINE, Grid, Point, spec_of
from easysteer_data.vectors import SteeringVector, VectorProvenance

STEPS = {layer_id: torch.full((4,), 1.0 + layer_id) for layer_id in (3, 4, 5)}
VECTOR = SteeringVector.of_steps(STEPS, VectorProvenance(best_layer=4))


def test_every_point_comes_once_and_the_one_without_steering_first() -> None:
    grid = Grid.of(SteerSettings(layers=(5, (4, 3)), scales=(2.0, -1.0, 0.0)), VECTOR)
    assert grid.points == [BASELINE, *(Point(layers, s) for layers in ((5,), (3, 4)) for s in (-1.0, 2.0))]
    assert grid.scales == (-1.0, 0.0, 2.0)


def test_the_vector_s_best_layer_is_tried_where_none_is_asked_for() -> None:
    assert Grid.of(SteerSettings(scales=(1.0,)), VECTOR).layer_sets == ((4,),)
    with pytest.raises(SettingsError, match=r"does not tell its best layer; give steer\.layers, of 3, 4, 5"):
        Grid.of(SteerSettings(), SteeringVector.of_steps(STEPS, VectorProvenance()))


def test_a_layer_that_the_vector_lacks_is_refused() -> None:
    with pytest.raises(SettingsError, match="no layer 7"):
        Grid.of(SteerSettings(layers=((4, 7),)), VECTOR)


def test_a_point_s_spec_holds_its_layers_at_its_scale_of_the_vector_s_own_step() -> None:
    settings = SteerSettings(algorithm="erase", apply={"prompt_positions": [-1]}, force=True)
    spec = spec_of(Point((3, 5), 0.5), VECTOR, settings)
    assert spec is not None
    (vector,) = spec.vectors
    assert isinstance(vector.data, SteeringVector)
    assert vector.data.layer_ids == (3, 5)
    assert (vector.algorithm, vector.scale, vector.normalize, spec.force) == ("erase", 0.5, False, True)
    assert vector.apply is not None
    assert spec_of(BASELINE, VECTOR, settings) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scales": (0.0,)}, "give finite numbers, one beside 0"),
        ({"scales": (1.0, float("nan"))}, "give finite numbers"),
        ({"layers": ()}, r"steer\.layers holds nothing"),
        ({"layers": (3, ())}, r"steer\.layers holds nothing"),
    ],
)
def test_a_grid_that_tries_nothing_is_refused(values: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SteerSettings(**values)  # type: ignore[arg-type]
