"""The `steering=` of `capture` and `generate`, made into what the engine room takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from easysteer_data.engine.steer_session import steerable
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.errors import SettingsError
from easysteer_data.model_facts import read_model_facts
from easysteer_data.select import warn_clamped
from easysteer_data.steering import SteerableModel, SteeringPlan, SteeringSpec, make_plan
from easysteer_data.vectors import model_fingerprint

Steering = SteeringSpec | Sequence[SteeringSpec | None]


def plan_steering(engine: TappedEngine, steering: Steering | None, n_prompts: int) -> SteeringPlan:
    """Check the specs against the engine's model, and make the engine ready if anything is steered.

    Raises:
        SettingsError: another number of specs than prompts, or a vector that does not fit the model.
        UnsupportedEngineError: the engine can't be steered; shows what to open it with.
    """
    return make_plan(steering, n_prompts, lambda: _model(engine))


def warn_of_short_prompts(plan: SteeringPlan, outputs: Sequence[Any]) -> None:
    """Warn of vectors whose positions are past a prompt's end and act on its last token."""
    pairs = [
        (vector.select, len(output.prompt_token_ids))
        for output, recipe in zip(outputs, plan.of_prompt, strict=True)
        if recipe is not None
        for vector in plan.recipes[recipe].vectors
    ]
    warn_clamped([select for select, _ in pairs], [n_tokens for _, n_tokens in pairs])


def _model(engine: TappedEngine) -> SteerableModel:
    layer_ids, width = steerable(engine)
    folder = str(engine.llm.llm_engine.vllm_config.model_config.model)
    return SteerableModel(layer_ids, width, lambda: _fingerprint(folder, _state(folder)))


@cache
def _fingerprint(folder: str, state: tuple[tuple[str, int, int], ...]) -> str | None:  # noqa: ARG001
    """Of the files in this state; None where the model is no folder of safetensors."""
    try:
        return model_fingerprint(read_model_facts(folder).fingerprint)
    except SettingsError:
        return None


def _state(folder: str) -> tuple[tuple[str, int, int], ...]:
    files = sorted(Path(folder).glob("*")) if Path(folder).is_dir() else []
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
