"""A steering vector in, completions over a grid of layers and scales, their scores and the usable scales out.

`python -m pipelines.steer experiment=demo`, after fit_vector; or `steer.vector=PATH` for any vector.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.engine.open import close_llm, open_llm
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.steer_trial import SteerReport, plan_trial, run_trial, steer_report_json, steer_table

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Try the experiment's vector; print and write the figures."""
    plan = plan_trial(settings)
    llm = open_llm(
        settings.model.path,
        layers=[plan.reading.layer],
        steering=True,
        in_process=settings.engine.in_process,
        dtype=settings.model.dtype,
        max_model_len=plan.max_model_len,
        **settings.engine.llm_kwargs(),
    )
    try:
        report = run_trial(plan, llm)
    finally:
        close_llm(llm)
    out = Path(settings.out)
    make_folder(out)
    text = json.dumps(steer_report_json(report), indent=2, allow_nan=False)
    write_durably(out / "steer_report.json", f"{text}\n".encode())
    sys.stdout.write(f"{steer_table(report)}\n\nwritten: {out}/steer_report.json\n")
    return _summary(report)


def _summary(report: SteerReport) -> Mapping[str, object]:
    best = report.best
    if best is None:
        return {"usable": "-"}
    usable = next(curve.usable for curve in report.curves if curve.layers == best.layers)
    return {
        "layers": ", ".join(map(str, best.layers)),
        "usable": f"{usable.lowest:g} to {usable.highest:g}",
        "best scale": f"{best.scale:g}",
        f"change of {report.target}": f"{best.change:+.3f}",
    }


def main() -> None:
    """Entry point."""
    run_stage("steer", stage)


if __name__ == "__main__":
    main()
