"""Corpus in, shards of activations out: `python -m pipelines.capture experiment=demo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.capture_run import CapturePlan, capture_corpus, estimate_capture, plan_capture
from easysteer_data.corpus import corpus_report
from easysteer_data.errors import RunError
from easysteer_data.run_folders import local_out, output_to_capture, run_folder
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Capture the experiment's corpus, unless a finished run of the same settings is there."""
    if settings.dry_run:
        return _dry_run(settings)
    plan = plan_capture(settings)
    _report_corpus(plan, Path(local_out(settings.out, settings.name)))
    outcome = capture_corpus(settings, output_to_capture(settings, plan.fingerprint), plan)
    sys.stdout.write(f"{outcome}\n")
    return {
        "run": outcome.run,
        "prompts": outcome.n_prompts,
        "rows": outcome.n_rows,
        "shards captured": outcome.n_shards_made,
    }


def _report_corpus(plan: CapturePlan, out: Path) -> None:
    report = corpus_report(plan.prompts, skipped=plan.ledger.skipped)
    out.mkdir(parents=True, exist_ok=True)
    (out / "corpus_report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{report.table()}\n")
    sys.stdout.flush()


def _dry_run(settings: ExperimentSettings) -> Mapping[str, object]:
    estimate = estimate_capture(settings, run_folder(settings))
    sys.stdout.write(f"{estimate.table()}\n")
    if not estimate.fits:
        raise RunError(f"{run_folder(settings)}: the run does not fit the disk")
    return {
        "rows": estimate.n_rows,
        "GB": round(estimate.n_bytes / 1e9, 3),
        "hours": round(estimate.hours, 2),
    }


def main() -> None:
    """Entry point."""
    run_stage("capture", stage)


if __name__ == "__main__":
    main()
