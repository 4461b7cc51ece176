"""Vectors are loaded and checked against the model before any prompt runs; equal specs become one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import SteeringSpec, SteeringVector, VectorSpec
from easysteer_data.engine.steer_wire import Recipe
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.steering import SteerableModel, SteeringPlan, make_plan
from easysteer_data.vectors import VectorProvenance, export_gguf, save_vector

WIDTH = 8
MODEL = SteerableModel((0, 1, 2), WIDTH, lambda: "aa")
HAPPY = Path(__file__).parents[3] / "shared/data/easysteer/happy_diffmean.gguf"


def step(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


def vector(fingerprint: str | None = None, stream: str = "hidden_states") -> SteeringVector:
    provenance = VectorProvenance(model="tiny", model_fingerprint=fingerprint, stream=stream)
    return SteeringVector.of_steps({1: step(1), 2: step(2)}, provenance)


def plan_of(steering: Any, n_prompts: int = 1, model: SteerableModel = MODEL) -> SteeringPlan:
    return make_plan(steering, n_prompts, model)


def only(**options: Any) -> SteeringSpec:
    return SteeringSpec(vectors=[VectorSpec(**options)])


def test_a_vector_acts_alike_from_memory_and_from_either_file(tmp_path: Path) -> None:
    save_vector(vector(), tmp_path / "v.safetensors")
    export_gguf(vector(), tmp_path / "v.gguf")
    sources: list[dict[str, Any]] = [
        {"data": {1: step(1), 2: step(2)}},
        {"data": vector()},
        {"source": tmp_path / "v.safetensors"},
        {"source": str(tmp_path / "v.gguf")},
    ]
    for source in sources:
        (acting,) = plan_of(only(**source)).recipes[0].vectors
        assert list(acting.steps) == [1, 2]
        assert torch.allclose(acting.steps[2], step(2), rtol=1e-6)


def test_a_step_has_length_one_where_that_is_asked_for_or_erased() -> None:
    unit = step(1) / step(1).norm()
    for options in ({"normalize": True}, {"algorithm": "erase"}):
        (acting,) = plan_of(only(data=vector(), layers=[1], scale=-2, **options)).recipes[0].vectors
        assert list(acting.steps) == [1]
        assert acting.scale == -2
        assert torch.allclose(acting.steps[1], unit, atol=1e-6)


def test_equal_specs_share_a_recipe_and_a_scale_of_zero_steers_nothing() -> None:
    data = {0: step()}
    specs = [
        only(data=data),
        None,
        only(data={0: step()}),
        only(data=data, scale=0),
        only(data=data, scale=2),
    ]
    plan = plan_of(specs, 5)
    assert plan.of_prompt == (0, None, 0, None, 1)
    assert len(plan.recipes) == 2
    assert plan_of([None, None], 2) == SteeringPlan((), (None, None))


def test_a_recipe_is_the_same_after_its_wire() -> None:
    spec = SteeringSpec(
        vectors=[
            VectorSpec(data=vector(), apply={"prompt_positions": [-1]}, scale=0.5),
            VectorSpec(data={0: step()}, algorithm="erase"),
        ],
        conflict="error",
    )
    (recipe,) = plan_of(spec).recipes
    again = Recipe.from_wire(recipe.to_wire())
    assert again.digest() == recipe.digest()
    assert again.exclusive
    assert again.layer_ids == {0, 1, 2}
    assert torch.equal(again.vectors[0].steps[2], recipe.vectors[0].steps[2])


@pytest.mark.parametrize(
    ("steering", "message"),
    [
        ([None], "steering has 1 entries for 2 prompts"),
        ("happy", "steering is a SteeringSpec, or a list"),
        (
            only(data={0: torch.ones(4)}),
            r"vectors\[0\]: layer 0: a vector must be a Tensor \[8\], found \[4\]",
        ),
        (only(data={0: torch.zeros(WIDTH)}), r"vectors\[0\]: layer 0: the vector is all zeros"),
        (only(data={0: torch.full((WIDTH,), torch.nan)}), "layer 0: the vector is not finite"),
        (only(data={7: step()}), r"no layers \[7\]; this engine can be steered at layers 0, 1, 2"),
        (only(data=vector(), layers=[0, 1]), r"no layers \[0\]; the vector has layers 1, 2"),
        (only(data=vector(stream="attention_heads")), "one of attention_heads; only hidden_states"),
        (only(data=vector("bb")), "of fingerprint bb, but this model's is aa.*force=True"),
        (only(source="v.pt"), "ends in .safetensors or .gguf"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused_by_name(steering: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_of(steering, 2)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RunError, match=r"vectors\[0\]: nowhere\.safetensors: can't be read"):
        plan_of(only(source="nowhere.safetensors"))


def test_another_models_vector_passes_by_force_but_never_with_another_width() -> None:
    forced = SteeringSpec(vectors=[VectorSpec(data=vector("bb"))], force=True)
    assert plan_of(forced).of_prompt == (0,)
    assert plan_of(only(data=vector("aa"))).of_prompt == (0,)
    with pytest.raises(SettingsError, match="directions have width 8, the model's rows 9"):
        plan_of(forced, 1, SteerableModel((1, 2), 9, lambda: "bb"))


def test_a_model_is_not_hashed_for_a_vector_without_a_fingerprint() -> None:
    def hashed() -> str:
        raise RuntimeError

    assert plan_of(only(data=vector()), 1, SteerableModel((1, 2), WIDTH, hashed)).of_prompt == (0,)


def test_a_published_control_vector_is_read_and_refused_by_a_model_of_another_width(tmp_path: Path) -> None:
    source = HAPPY
    if not HAPPY.is_file():  # where the data is not at hand, one made as those are
        source = tmp_path / "made.gguf"
        export_gguf(SteeringVector.of_steps({1: torch.ones(1536)}, VectorProvenance()), source)
    with pytest.raises(SettingsError, match=rf"{source.name}: .* width \d+, the model's rows 8"):
        plan_of(only(source=source))
