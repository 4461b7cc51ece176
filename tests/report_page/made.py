"""An experiment's folder as its stages leave it, of made-up rows: a run, three reports, a sweep's summary.

The texts and names in it are as hostile as a stranger's data set may be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from easysteer_data.notebook import fit_probe, fit_vector, open_run
from easysteer_data.probes import save_fitted
from easysteer_data.steer_trial import result as trial
from easysteer_data.steer_trial.report import steer_report_json
from easysteer_data.tokens import load_tokenizer
from easysteer_data.vectors import vector_report_json
from tests.runs import MadeRows, write_run
from tests.vectors.made import paired_rows

HOSTILE = "<script>window.owned = true</script><img src=x onerror='window.owned = true'> & $x_{1}$"
FINGERPRINT = "made-for-a-test"  # of every run that tests.runs writes

SCALES = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)


def write_experiment(out: Path, model: Path) -> Path:
    """Write everything that a report can show; `model` is a folder with a tokenizer. Returns `out`."""
    run = write_run(out / "capture", token_rows(model))
    probe = fit_probe(open_run(run), bootstrap=50)
    save_fitted(probe, out / "probe.safetensors")
    lettered = write_run(out / "lettered", paired_rows(60, letter=6.0))
    vectors = fit_vector(open_run(lettered), ["diff_means", "diff_means_balanced"])
    write_json(out / "report.json", probe.report.to_json())
    write_json(out / "vector_report.json", vector_report_json(vectors.report))
    write_json(out / "steer_report.json", steer_report_json(steer_report()))
    (out / "summary.csv").write_text(f'job,probe,test AUROC\n"{HOSTILE}",logistic,0.91\nb,ridge,0.90\n')
    return run.parent


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values))


def token_rows(model: Path, n_pairs: int = 20) -> MadeRows:
    """A row for every token of every prompt; class "true" lies along the first axis, the more the later."""
    tokenizer = load_tokenizer(str(model))
    made = paired_rows(n_pairs)
    cities = ("Paris is in France.", "Oslo is in Norway.", "Zürich 🙂 is in Norway.", HOSTILE)
    texts = [f"The city of {cities[i % len(cities)]}" for i in range(len(made.labels))]
    tokens = [tokenizer.encode(text) for text in texts]
    n_rows = [len(ids) for ids in tokens]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(n_rows), 3, 12)).astype(np.float32)
    is_true = np.repeat([label == "true" for label in made.labels], n_rows)
    along = np.concatenate([np.linspace(0, 3, n) for n in n_rows])
    x[:, :, 0] += np.where(is_true, along, -along)[:, None] * np.array([0.1, 1.0, 0.5])
    return replace(made, x=x, n_rows=n_rows, texts=texts, prompt_tokens=tokens)


def steer_report() -> trial.SteerReport:
    """A trial of two places, of which one works."""
    curves = tuple(
        trial.Curve(layers, _cells(slope), trial.ScaleRange(-4, 4, 7), trial.ScaleRange(-1, 1, 3))
        for layers, slope in (((4,), 0.1), ((4, 8), 0.8))
    )
    texts = [trial.SampleText((), 0.0, HOSTILE)]
    texts += [trial.SampleText((4, 8), scale, f"text at {scale:g}") for scale in SCALES if scale]
    scores = (
        trial.ScoreInfo("answer", "p(matching answer)", "probability of the matching answer"),
        trial.ScoreInfo("perplexity", "perplexity", "perplexity of the completion"),
    )
    return trial.SteerReport(
        "made-up-model",
        "made-up-corpus",
        "diff_means",
        "from 'false' to 'true'",
        "direct",
        "one step of the vector",
        "24 prompts of the validation split",
        "answer",
        trial.Limits(2.0, 0.5),
        scores,
        curves,
        (trial.Sample("0", HOSTILE, tuple(texts)),),
    )


def _cells(slope: float) -> tuple[trial.Cell, ...]:
    def figure(value: float) -> trial.Figure:
        return trial.Figure(value, 0.9 * value, 1.1 * value, 24)

    return tuple(
        trial.Cell(
            scale,
            {
                "answer": figure(1 / (1 + math.exp(-slope * scale))),
                "perplexity": figure(6 + 40 * slope * scale**2),
            },
        )
        for scale in SCALES
    )
