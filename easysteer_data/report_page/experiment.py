"""Which parts of a report an experiment's folder has. Reads files; knows what they hold, not how it looks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from easysteer_data.errors import RunError
from easysteer_data.report_page.content import Absent, Page, Section
from easysteer_data.report_page.probe import probe_section
from easysteer_data.report_page.run import run_section
from easysteer_data.report_page.steering import steering_section
from easysteer_data.report_page.sweep import sweep_section
from easysteer_data.report_page.tokens import TITLE, token_section
from easysteer_data.report_page.vectors import vector_section
from easysteer_data.shards import Run, open_run

Json = Mapping[str, Any]
Part = Section | Absent


def read_page(
    name: str, out: Path, run_folder: Path, model: str, prompts: Sequence[int] | None = None
) -> Page:
    """Collect an experiment's report.

    Args:
        name: of the experiment.
        out: the experiment's folder.
        run_folder: its captured run.
        model: folder or hub name of its model, whose tokenizer tells the tokens' texts.
        prompts: indices of the prompts that are shown token by token, None = those of the highest and lowest
            scores.

    Raises:
        RunError: a file is there and can't be used, or there is nothing to report.
    """
    run = _run(run_folder)
    probe = _read(out / "report.json")
    vectors = _read(out / "vector_report.json")
    steering = _read(out / "steer_report.json")
    build_probe = partial(probe_section, text_of=_texts(run, probe))
    summary = out / "summary.csv"
    parts: list[Part] = [
        _section(out / "report.json", build_probe, probe, "Probe", "train_probe"),
        _tokens(run, probe, out, model, prompts),
        _section(out / "vector_report.json", vector_section, vectors, "Steering vectors", "fit_vector"),
        _section(out / "steer_report.json", steering_section, steering, "Steered generation", "steer"),
    ]
    if summary.is_file():
        parts.append(sweep_section(summary))
    parts.append(run_section(run) if isinstance(run, Run) else run)
    sections = [part for part in parts if isinstance(part, Section)]
    if not sections:
        raise RunError(f"{out}: nothing to report; run capture, train_probe, fit_vector or steer first")
    absent = [part for part in parts if isinstance(part, Absent)]
    return Page(name, _subtitle(run, probe, vectors, steering), sections, absent)


def _run(folder: Path) -> Run | Absent:
    try:
        return open_run(folder)
    except RunError as error:
        return Absent("Captured run and provenance", str(error).partition("\n")[0])


def _read(path: Path) -> Json | None:
    """A JSON object, None where there is no such file."""
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: can't be read ({error}); remove it, or run its stage again") from error
    if not isinstance(values, dict):
        raise RunError(f"{path}: is no JSON object; remove it, or run its stage again")
    return values


def _section(
    path: Path, build: Callable[[Json], Section], report: Json | None, title: str, stage: str
) -> Part:
    if report is None:
        return Absent(title, f"there is no {path.name}; python -m pipelines.{stage} writes it")
    try:
        return build(report)
    except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
        raise RunError(
            f"{path}: is not as this version's pipelines.{stage} writes it "
            f"({type(error).__name__}: {error}); run it again"
        ) from error


def _is_of(run: Run | Absent, report: Json | None) -> bool:
    """Whether a report was measured on this run."""
    return (
        isinstance(run, Run)
        and report is not None
        and report.get("run_fingerprint") == run.manifest.header.fingerprint
    )


def _texts(run: Run | Absent, probe: Json | None) -> Callable[[int], str | None]:
    """A prompt's text by its index; None where the run is not the one that the probe was fitted on."""
    if not (isinstance(run, Run) and _is_of(run, probe)):
        return lambda _: None
    texts = run.prompts(["text"])["text"]
    return lambda index: str(texts[index]) if 0 <= index < len(texts) else None


def _tokens(
    run: Run | Absent, probe: Json | None, out: Path, model: str, prompts: Sequence[int] | None
) -> Part:
    if not isinstance(run, Run) or probe is None:
        return Absent(TITLE, "needs a captured run and a probe of it")
    if not _is_of(run, probe):
        return Absent(TITLE, f"the probe was fitted on another run than {run.path}")
    return token_section(run, probe, out / "probe.safetensors", model, prompts)


def _subtitle(run: Run | Absent, *reports: Json | None) -> str:
    if isinstance(run, Run):
        header = run.manifest.header
        found: Json = {"model": header.model.get("name"), "data_set": header.corpus.get("name")}
    else:
        found = next(report for report in reports if report is not None)
    return f"{found.get('model') or 'unnamed model'} on {found.get('data_set') or 'unnamed data'}"
