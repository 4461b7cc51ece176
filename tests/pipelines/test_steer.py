"""Trials of steering vectors: every score against Hugging Face, and the stage as a user runs it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from easysteer_data.corpus import CorpusSettings
from easysteer_data.model_facts import read_model_facts
from easysteer_data.settings import ExperimentSettings, ModelSettings
from easysteer_data.steer_options import CompletionSettings, SteerSettings
from easysteer_data.steer_trial import TrialPlan, run_trial
from easysteer_data.steer_trial.grid import Grid
from easysteer_data.steer_trial.prompts import LabelledPrompt, Material, Question, TrialPrompt
from easysteer_data.steer_trial.reading import vector_reading
from easysteer_data.vectors import SteeringVector, VectorProvenance
from tests.steering.hugging_face import Change, forward, greedy

N_NEW = 6
EOS = 1
PROMPTS = (TrialPrompt("a", "A", (5, 9, 30, 31)), TrialPrompt("b", "B", (7, 8)))
LABELLED = tuple(
    LabelledPrompt(TrialPrompt(str(i), str(i), (20 + 3 * i, 21 + 5 * i, 60 - i)), (1, 2)[i % 2 :], i % 3 > 0)
    for i in range(12)
)
QUESTIONS = (Question(TrialPrompt("q", "Q", (11, 12, 13)), 40, 41), Question(PROMPTS[1], 50, 40))


def made_vector() -> SteeringVector:
    generator = torch.Generator().manual_seed(0)
    steps = {layer_id: 0.3 * torch.randn(128, generator=generator) for layer_id in (0, 1, 2)}
    return SteeringVector.of_steps(steps, VectorProvenance(estimator="made", sign="from 'no' to 'yes'"))


def plan_of(model: Path, steer: SteerSettings) -> TrialPlan:
    settings = ExperimentSettings(
        name="trial",
        out="unused",
        model=ModelSettings(path=str(model)),
        corpus=CorpusSettings(path="unused"),
        steer=steer,
    )
    vector = made_vector()
    return TrialPlan(
        settings=settings,
        facts=read_model_facts(str(model)),
        vector=vector,
        grid=Grid.of(steer, vector),
        material=Material(PROMPTS, QUESTIONS, LABELLED, "made up"),
        reading=vector_reading(vector, 1),
        target="answer",
    )


def change_of(steer: SteerSettings, layers: tuple[int, ...], scale: float) -> Change:
    vector = made_vector()

    def change(layer_id: int, hidden: torch.Tensor) -> torch.Tensor:
        if layer_id not in layers or scale == 0:
            return hidden
        if steer.algorithm == "direct":
            return hidden + scale * vector.step(layer_id)
        direction = vector.directions[layer_id]
        return hidden - scale * (hidden @ direction)[:, None] * direction

    return change


def expected_scores(model: Path, change: Change) -> dict[str, float]:
    """Every score from its definition, on Hugging Face's forward passes."""
    plain = change_of(SteerSettings(), (), 0.0)
    logprobs, readings, lengths, repeated, n_grams = [], [], [], 0, 0
    for prompt in PROMPTS:
        made = greedy(model, prompt.token_ids, N_NEW, change)
        made = made[: made.index(EOS) + 1] if EOS in made else made
        n = len(prompt.token_ids)
        rows, own = forward(model, [*prompt.token_ids, *made], plain)
        readings.append(float((rows[1][n:].double() @ made_vector().directions[1].double()).mean()))
        logprobs += [float(own[n - 1 + i, token]) for i, token in enumerate(made)]
        grams = [tuple(made[i : i + 3]) for i in range(len(made) - 2)]
        repeated, n_grams = repeated + len(grams) - len(set(grams)), n_grams + len(grams)
        lengths.append(len(made))
    answers = []
    for question in QUESTIONS:
        last = forward(model, question.prompt.token_ids, change)[1][-1].double()
        answers.append(float(last[[question.matching, question.other]].softmax(0)[0]))
    direction = made_vector().directions[1]
    labelled = [
        float((forward(model, one.prompt.token_ids, change)[0][1][list(one.positions)] @ direction).mean())
        for one in LABELLED
    ]
    return {
        "answer": sum(answers) / 2,
        "separation": roc_auc_score([one.positive for one in LABELLED], labelled),
        "probe": sum(readings) / 2,
        "perplexity": math.exp(-sum(logprobs) / len(logprobs)),
        "repetition": repeated / n_grams,
        "length": sum(lengths) / 2,
    }


@pytest.mark.parametrize(
    "steer",
    [
        SteerSettings(
            layers=(1, (0, 2)), scales=(-2.0, 4.0), completion=CompletionSettings(max_tokens=N_NEW)
        ),
        SteerSettings(
            layers=(1,), scales=(0.5, 1.0), algorithm="erase", completion=CompletionSettings(max_tokens=N_NEW)
        ),
    ],
    ids=["direct", "erase"],
)
def test_every_score_of_every_cell_is_that_of_hugging_face(
    engines: Any, tiny_model: Path, steer: SteerSettings
) -> None:
    report = run_trial(plan_of(tiny_model, steer), engines.get(tiny_model, steering=True))
    assert [cell.scale for cell in report.curves[0].cells] == sorted({0.0, *steer.scales})
    for curve in report.curves:
        for cell in curve.cells:
            expected = expected_scores(tiny_model, change_of(steer, curve.layers, cell.scale))
            found = {name: figure.value for name, figure in cell.figures.items()}
            if steer.algorithm == "erase" and cell.scale == 1:
                # Nothing is left of the direction that is read: rounding alone orders the prompts.
                assert found.pop("separation") is not None
                assert expected.pop("separation") is not None
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), (curve.layers, cell.scale)
    changed = [one.text for one in report.samples[0].completions]
    assert len(set(changed)) > 1
    assert {score.name for score in report.scores} == set(report.baseline.figures)
