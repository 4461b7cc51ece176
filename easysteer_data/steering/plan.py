"""From specs to what the engine takes: vectors loaded and checked against the model, equal specs made one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from easysteer_data.engine.steer_wire import Recipe, SteerVector
from easysteer_data.errors import EasySteerDataError, SettingsError
from easysteer_data.steering.apply import coerce_apply
from easysteer_data.steering.spec import SteeringSpec, VectorSpec
from easysteer_data.vectors import SteeringVector, import_gguf, load_vector

_STREAM = "hidden_states"


@dataclass(frozen=True, slots=True)
class SteerableModel:
    """What a vector has to fit.

    Attributes:
        layer_ids: blocks whose output can be steered.
        width: of the residual stream.
        fingerprint: gives the model's fingerprint, None where it has none; called only for vectors that
            carry one, since it may have to read the weights.
    """

    layer_ids: tuple[int, ...]
    width: int
    fingerprint: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class SteeringPlan:
    """What steers each prompt.

    Attributes:
        recipes: different ones.
        of_prompt: each prompt's recipe by its place in `recipes`, None = not steered.
    """

    recipes: tuple[Recipe, ...]
    of_prompt: tuple[int | None, ...]


def make_plan(
    steering: SteeringSpec | Sequence[SteeringSpec | None] | None,
    n_prompts: int,
    model: SteerableModel | Callable[[], SteerableModel],
) -> SteeringPlan:
    """Load and check what the specs name.

    Args:
        steering: one spec for all prompts, or one per prompt, None entries unsteered.
        n_prompts: number of prompts.
        model: the model, or what gives it; asked for only where something is steered.

    Raises:
        SettingsError: another number of specs than prompts, or a vector that does not fit the model.
        RunError: a vector's file can't be read.
    """
    specs = specs_of(steering, n_prompts)
    if not any(specs):
        return SteeringPlan((), (None,) * n_prompts)
    fitted = model() if callable(model) else model
    places: dict[str, int] = {}
    recipes: list[Recipe] = []
    known: dict[int, int | None] = {}
    for spec in specs:
        if spec is None or id(spec) in known:
            continue
        recipe = _recipe(spec, fitted)
        place = None if recipe is None else places.setdefault(recipe.digest(), len(recipes))
        if recipe is not None and place == len(recipes):
            recipes.append(recipe)
        known[id(spec)] = place
    return SteeringPlan(tuple(recipes), tuple(None if spec is None else known[id(spec)] for spec in specs))


def specs_of(
    steering: SteeringSpec | Sequence[SteeringSpec | None] | None, n_prompts: int
) -> list[SteeringSpec | None]:
    """Each prompt's spec; SettingsError on another number of specs than prompts, or on anything else."""
    if steering is None or isinstance(steering, SteeringSpec):
        return [steering] * n_prompts
    if not isinstance(steering, Sequence) or any(not isinstance(s, SteeringSpec | None) for s in steering):
        raise SettingsError(
            "steering is a SteeringSpec, or a list with a SteeringSpec or None for each prompt, not "
            f"{type(steering).__name__}"
        )
    if len(steering) != n_prompts:
        raise SettingsError(f"steering has {len(steering)} entries for {n_prompts} prompts")
    return list(steering)


def _recipe(spec: SteeringSpec, model: SteerableModel) -> Recipe | None:
    """The spec's vectors, but those of scale 0; None where nothing is left."""
    vectors = []
    for i, vector in enumerate(spec.vectors):
        try:
            steps = _steps(vector, model, force=spec.force)
        except EasySteerDataError as error:
            raise type(error)(f"vectors[{i}]: {error}") from error
        if vector.scale:
            apply = coerce_apply(vector.apply)
            vectors.append(SteerVector(vector.algorithm, float(vector.scale), apply, steps))
    return Recipe(tuple(vectors), spec.conflict == "error") if vectors else None


def _steps(spec: VectorSpec, model: SteerableModel, *, force: bool) -> dict[int, torch.Tensor]:
    """Layer id -> v, float32 [width], of the layers that act."""
    steps = _all_steps(spec, model, force=force)
    asked = sorted(steps if spec.layers is None else set(spec.layers))
    for place, there in (("the vector has", steps), ("this engine can be steered at", model.layer_ids)):
        missing = [layer_id for layer_id in asked if layer_id not in there]
        if missing:
            raise SettingsError(f"no layers {missing}; {place} layers {', '.join(map(str, sorted(there)))}")
    to_unit = spec.normalize or spec.algorithm == "erase"
    return {layer_id: _checked(layer_id, steps[layer_id], model.width, to_unit) for layer_id in asked}


def _all_steps(spec: VectorSpec, model: SteerableModel, *, force: bool) -> Mapping[int, torch.Tensor]:
    data = spec.data
    if spec.source is not None:
        data = _read(Path(spec.source))
    if not isinstance(data, SteeringVector):
        return data or {}
    if data.provenance.stream != _STREAM:
        raise SettingsError(f"the vector is one of {data.provenance.stream}; only {_STREAM} can be steered")
    own = data.provenance.model_fingerprint
    try:
        data.check_fits(None if force or own is None else model.fingerprint(), model.width)
    except SettingsError as error:
        raise SettingsError(f"{spec.source}: {error}" if spec.source is not None else str(error)) from error
    return {layer_id: data.step(layer_id) for layer_id in data.layer_ids}


def _read(path: Path) -> SteeringVector:
    if path.suffix == ".safetensors":
        return load_vector(path)
    if path.suffix == ".gguf":
        return import_gguf(path)
    raise SettingsError(f"source {path}: a vector's file ends in .safetensors or .gguf")


def _checked(layer_id: int, step: torch.Tensor, width: int, to_unit: bool) -> torch.Tensor:
    if not isinstance(step, torch.Tensor) or step.shape != (width,):
        found = list(step.shape) if isinstance(step, torch.Tensor) else type(step).__name__
        raise SettingsError(f"layer {layer_id}: a vector must be a Tensor [{width}], found {found}")
    exact = step.detach().to("cpu", torch.float64)
    if not exact.isfinite().all():
        raise SettingsError(f"layer {layer_id}: the vector is not finite")
    length = exact.norm()
    if not length:
        raise SettingsError(f"layer {layer_id}: the vector is all zeros")
    return (exact / length if to_unit else exact).float()
