"""What is settled about a trial before the engine starts: vector, grid, prompts, reading. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from easysteer_data.errors import SettingsError
from easysteer_data.model_facts import ModelFacts, read_model_facts
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import open_run
from easysteer_data.steer_options import TargetName
from easysteer_data.steer_trial.grid import Grid, best_layer
from easysteer_data.steer_trial.prompts import Material, given_prompts, held_out_material, spread
from easysteer_data.steer_trial.reading import Reading, probe_reading, vector_reading
from easysteer_data.vectors import SteeringVector, load_vector, model_fingerprint

PROBE_NAME = "probe.safetensors"
VECTOR_NAME = "vector.safetensors"


@dataclass(frozen=True, eq=False)
class TrialPlan:
    """A trial that is ready to run.

    Attributes:
        settings: the experiment's.
        facts: the model's shape and fingerprint.
        vector: what is tried.
        grid: where and how far.
        material: on which prompts and questions.
        reading: what reads the completions.
        target: the score that should rise with the scale.
    """

    settings: ExperimentSettings
    facts: ModelFacts
    vector: SteeringVector
    grid: Grid
    material: Material
    reading: Reading
    target: TargetName

    @property
    def max_model_len(self) -> int:
        """Tokens that the engine must be able to hold."""
        return _max_model_len(self.settings, self.facts)


def plan_trial(settings: ExperimentSettings) -> TrialPlan:
    """Read and check everything that can be known without an engine.

    Raises:
        SettingsError: the vector was made for another model, or a value can't be used.
        RunError: a run, vector or probe can't be read.
        CorpusError: given prompts can't be read.
    """
    steer = settings.steer
    facts = read_model_facts(settings.model.path)
    vector = load_vector(
        _path(settings, steer.vector, VECTOR_NAME),
        model_fingerprint=model_fingerprint(facts.fingerprint),
        width=facts.hidden_size,
        force=steer.force,
    )
    material = _material(settings, facts)
    _check_lengths(material, settings, facts)
    target: TargetName = steer.limits.target or ("answer" if material.questions else "probe")
    if target == "answer" and not material.questions:
        raise SettingsError(
            "steer.limits.target is 'answer', but there are no questions with two answers to ask; set it to "
            "'probe', or capture such a corpus, as corpus=caa"
        )
    grid = Grid.of(steer, vector)
    return TrialPlan(settings, facts, vector, grid, material, _reading(settings, vector), target)


def _path(settings: ExperimentSettings, given: str | None, name: str) -> Path:
    return Path(settings.out) / name if given is None else Path(given)


def _max_model_len(settings: ExperimentSettings, facts: ModelFacts) -> int:
    return settings.model.max_model_len or facts.window


def _material(settings: ExperimentSettings, facts: ModelFacts) -> Material:
    prompts, folder = settings.steer.prompts, run_folder(settings)
    if prompts.given is None:
        return held_out_material(open_run(folder), prompts)
    given = spread(
        given_prompts(
            prompts.given,
            settings.model.path,
            _max_model_len(settings, facts),
            settings.steer.completion.max_tokens,
        ),
        prompts.n_prompts,
    )
    origin = f"{len(given)} given prompts"
    if not folder.is_dir() or not (prompts.n_questions or prompts.n_labelled):
        return Material(tuple(given), origin=origin)
    held_out = held_out_material(open_run(folder), prompts)
    if held_out.questions:
        origin += f" and {len(held_out.questions)} questions of the split {prompts.split}"
    return replace(held_out, prompts=tuple(given), origin=origin)


def _check_lengths(material: Material, settings: ExperimentSettings, facts: ModelFacts) -> None:
    # The completion is read once more, for which the engine generates one more token.
    room = _max_model_len(settings, facts) - settings.steer.completion.max_tokens - 1
    for prompt in material.prompts:
        if len(prompt.token_ids) > room:
            raise SettingsError(
                f"prompt {prompt.id!r} has {len(prompt.token_ids)} tokens, but the window of "
                f"{_max_model_len(settings, facts)} leaves room for {room}; lower "
                "steer.completion.max_tokens, or raise model.max_model_len"
            )


def _reading(settings: ExperimentSettings, vector: SteeringVector) -> Reading:
    reading = settings.steer.reading
    layer = best_layer(vector, "steer.reading.layer") if reading.layer is None else reading.layer
    path = _path(settings, reading.probe, PROBE_NAME)
    if reading.probe == "vector" or (reading.probe is None and not path.is_file()):
        return vector_reading(vector, layer)
    if settings.data.normalise != "none":
        raise SettingsError(
            f"data.normalise is {settings.data.normalise!r}, so the probe reads rows that are changed first; "
            "train it with data.normalise=none, or set steer.reading.probe=vector"
        )
    return probe_reading(path, layer)
