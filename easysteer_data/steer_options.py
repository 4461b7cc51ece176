"""What a user may say about a trial of a steering vector, checked without touching a file or an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from easysteer_data.errors import SettingsError

Algorithm = Literal["direct", "erase"]
TargetName = Literal["answer", "probe"]
HeldOutSplit = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class TrialPromptSettings:
    """Which prompts are completed, and which questions are asked.

    Attributes:
        split: held-out part of the run's corpus to take them from.
        given: texts to complete instead, as a list or a file that `corpus.path` could name. Questions are
            then asked only where the run is there and its corpus has them.
        n_prompts: prompts to complete at most, evenly spaced.
        n_questions: questions with two answers to ask at most, evenly spaced.
        n_labelled: prompts of the split at most, evenly spaced, whose rows are captured again under steering:
            how well are the classes still told apart in them? 0 leaves that out.
        n_samples: prompts whose completions are written out.
    """

    split: HeldOutSplit = "validation"
    given: tuple[str, ...] | str | None = None
    n_prompts: int = 16
    n_questions: int = 64
    n_labelled: int = 0
    n_samples: int = 4

    def __post_init__(self) -> None:
        if self.n_prompts < 1 or min(self.n_questions, self.n_labelled, self.n_samples) < 0:
            raise SettingsError("steer.prompts: n_prompts must be at least 1, the other numbers at least 0")


@dataclass(frozen=True, kw_only=True)
class CompletionSettings:
    """How prompts are completed.

    Attributes:
        max_tokens: longest completion.
        temperature: 0 takes the most likely token each time.
        seed: of every prompt's draws, where the temperature is above 0.
    """

    max_tokens: int = 32
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """What reads the completions' rows, which are captured without steering.

    Attributes:
        probe: file of a probe of two classes; "vector" projects on the steering vector's own direction; None
            takes OUT/probe.safetensors where it is, else the vector.
        layer: decoder block to read, None = the vector's best.
    """

    probe: str | None = None
    layer: int | None = None


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """What a usable scale must keep to.

    Attributes:
        target: the score that must rise with the scale; None = "answer" where questions are asked, else
            "probe".
        perplexity_ratio: highest perplexity of completions, in multiples of that without steering.
        repetition: highest share of repeated 3-grams in completions.
    """

    target: TargetName | None = None
    perplexity_ratio: float = 2.0
    repetition: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SteerSettings:
    """How a steering vector is tried.

    Attributes:
        vector: its file, None = OUT/vector.safetensors.
        algorithm: "direct" adds `scale` steps to each row, "erase" takes the part along the direction out.
        layers: where: each entry is one decoder block, or a list of blocks that are steered together; None =
            the vector's best layer.
        scales: multiples of the vector's own step, which is as long as the classes are apart along it; 0 is
            always tried. Of "erase", the share that is taken out.
        apply: at which tokens, as in `select`; None = at all, of prompt and completion.
        force: try a vector that was made for another model.
        prompts: which prompts.
        completion: how they are completed.
        reading: what reads the completions.
        limits: what a usable scale must keep to.
    """

    vector: str | None = None
    algorithm: Algorithm = "direct"
    layers: tuple[int | tuple[int, ...], ...] | None = None
    scales: tuple[float, ...] = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
    apply: Mapping[str, Any] | None = None
    force: bool = False
    prompts: TrialPromptSettings = field(default_factory=TrialPromptSettings)
    completion: CompletionSettings = field(default_factory=CompletionSettings)
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)

    def __post_init__(self) -> None:
        if not any(self.scales) or not all(math.isfinite(scale) for scale in self.scales):
            raise SettingsError(f"steer.scales is {list(self.scales)}; give finite numbers, one beside 0")
        if self.layers is not None and (not self.layers or () in self.layers):
            raise SettingsError("steer.layers holds nothing; give decoder blocks, or null for the best one")
