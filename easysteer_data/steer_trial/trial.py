"""Runs a trial on an engine: questions and completions of all points in few big batches, then scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from easysteer_data.hidden_states import capture, generate
from easysteer_data.select import SelectSpec
from easysteer_data.steer_trial.assembly import Found, assemble
from easysteer_data.steer_trial.grid import Point, spec_of
from easysteer_data.steer_trial.plan import TrialPlan
from easysteer_data.steer_trial.prompts import Question, TrialPrompt
from easysteer_data.steer_trial.result import Figure, SteerReport
from easysteer_data.steer_trial.scores import Part, answer_part, perplexity_part, repetition_part, separation

T = TypeVar("T")

# vLLM gives the log-probabilities of 128 tokens at most, and a question has two.
_QUESTIONS_A_BATCH = 64
# Bounds the rows of completions that are in memory at once.
_TEXTS_A_BATCH = 256


@dataclass(frozen=True, slots=True)
class _Completion:
    text: str
    token_ids: tuple[int, ...]


def run_trial(plan: TrialPlan, llm: Any) -> SteerReport:
    """Try the vector at every point of the grid.

    Args:
        plan: what `plan_trial` made.
        llm: an engine by `open_llm(..., steering=True)` that taps the hidden states of the reading's layer.

    Raises:
        UnsupportedEngineError: the engine can't be steered.
        ProofError: a row of a completion is wrong.
    """
    points = plan.grid.points
    answers = _by_point(_ask(plan, llm, points), len(points)) if plan.material.questions else None
    completions = _complete(plan, llm, points)
    readings = _by_point(_read(plan, llm, completions), len(points))
    found = {}
    for place, (point, made) in enumerate(zip(points, _by_point(completions, len(points)), strict=True)):
        parts = {
            "probe": [score for score, _ in readings[place]],
            "perplexity": [perplexity for _, perplexity in readings[place]],
            "repetition": [repetition_part(one.token_ids) for one in made],
            "length": [Part(len(one.token_ids)) for one in made],
        }
        if answers is not None:
            parts["answer"] = answers[place]
        apart = _separate(plan, llm, point) if plan.material.labelled else None
        found[point] = Found(parts, [one.text for one in made], apart)
    return assemble(plan, found)


def _by_point(items: Sequence[T], n_points: int) -> list[list[T]]:
    """Items of the first point, of the second, and so on."""
    n = len(items) // n_points
    return [list(items[place * n : (place + 1) * n]) for place in range(n_points)]


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _separate(plan: TrialPlan, llm: Any, point: Point) -> Figure:
    """How well the reading tells the labelled prompts apart by their rows at a point."""
    labelled = plan.material.labelled
    result = capture(
        llm,
        [{"prompt_token_ids": list(one.prompt.token_ids)} for one in labelled],
        layers=[plan.reading.layer],
        per_prompt_selects=[SelectSpec(prompt_positions=one.positions) for one in labelled],
        steering=spec_of(point, plan.vector, plan.settings.steer),
    )
    scores = [plan.reading.score(result.sample(i)[plan.reading.layer]) for i in range(len(labelled))]
    return separation(scores, [one.positive for one in labelled])


def _ask(plan: TrialPlan, llm: Any, points: Sequence[Point]) -> list[Part]:
    """Every question at every point, point by point: how likely the matching answer is of the two."""
    by_batch = [
        _ask_batch(plan, llm, points, batch)
        for batch in _batches(plan.material.questions, _QUESTIONS_A_BATCH)
    ]
    return [part for place in range(len(points)) for batch in by_batch for part in batch[place]]


def _ask_batch(
    plan: TrialPlan, llm: Any, points: Sequence[Point], questions: Sequence[Question]
) -> list[list[Part]]:
    tokens = sorted({token for question in questions for token in (question.matching, question.other)})
    outputs = _generate(
        plan, llm, points, [question.prompt for question in questions], 1, {"logprob_token_ids": tokens}
    )
    parts = []
    for output, question in zip(outputs, list(questions) * len(points), strict=True):
        found = output.outputs[0].logprobs[0]
        parts.append(answer_part(found[question.matching].logprob, found[question.other].logprob))
    return _by_point(parts, len(points))


def _complete(plan: TrialPlan, llm: Any, points: Sequence[Point]) -> list[_Completion]:
    completion = plan.settings.steer.completion
    sampling: dict[str, Any] = {"temperature": completion.temperature}
    if completion.temperature > 0:
        sampling["seed"] = completion.seed
    outputs = _generate(plan, llm, points, plan.material.prompts, completion.max_tokens, sampling)
    return [_Completion(output.outputs[0].text, tuple(output.outputs[0].token_ids)) for output in outputs]


def _generate(
    plan: TrialPlan,
    llm: Any,
    points: Sequence[Point],
    prompts: Sequence[TrialPrompt],
    max_tokens: int,
    sampling: Mapping[str, Any],
) -> list[Any]:
    """RequestOutputs of every prompt at every point, point by point, in one batch."""
    specs = [spec_of(point, plan.vector, plan.settings.steer) for point in points]
    return generate(
        llm,
        [{"prompt_token_ids": list(prompt.token_ids)} for _ in points for prompt in prompts],
        [spec for spec in specs for _ in prompts],
        max_tokens,
        **sampling,
    )


def _read(plan: TrialPlan, llm: Any, completions: Sequence[_Completion]) -> list[tuple[Part, Part]]:
    """Mean score of each completion's rows, and its perplexity, both of a pass without steering."""
    prompts = list(plan.material.prompts) * (len(completions) // len(plan.material.prompts))
    pairs = list(zip(prompts, completions, strict=True))
    return [part for batch in _batches(pairs, _TEXTS_A_BATCH) for part in _read_batch(plan, llm, batch)]


def _read_batch(
    plan: TrialPlan, llm: Any, pairs: Sequence[tuple[TrialPrompt, _Completion]]
) -> list[tuple[Part, Part]]:
    layer = plan.reading.layer
    result = capture(
        llm,
        [{"prompt_token_ids": [*prompt.token_ids, *made.token_ids]} for prompt, made in pairs],
        layers=[layer],
        per_prompt_selects=[SelectSpec(prompt_window=(len(prompt.token_ids), None)) for prompt, _ in pairs],
        prompt_logprobs=0,
    )
    parts = []
    for i, (prompt, made) in enumerate(pairs):
        tokens = zip(result.outputs[i].prompt_logprobs[len(prompt.token_ids) :], made.token_ids, strict=True)
        logprobs = [found[token].logprob for found, token in tokens]
        parts.append((Part(plan.reading.score(result.sample(i)[layer])), perplexity_part(logprobs)))
    return parts
