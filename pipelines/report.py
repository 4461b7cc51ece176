"""What an experiment's other stages wrote in, report.html and its figures as PNG out.

`python -m pipelines.report experiment=demo`, after any of capture, train_probe, fit_vector, steer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.report_page import FIGURES, HTML_NAME, read_page, write_page
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Write the report of what the experiment's folder holds; print what it is without."""
    out = Path(settings.out)
    prompts = settings.report.prompts
    page = read_page(settings.name, out, run_folder(settings), settings.model.path, prompts)
    write_page(page, out)
    lines = [f"without {absent.title}: {absent.reason}" for absent in page.absent]
    lines.append(f"written: {out / HTML_NAME}, {out / FIGURES}/*.png")
    sys.stdout.write("\n".join(lines) + "\n")
    return {"report": out / HTML_NAME, "sections": len(page.sections)}


def main() -> None:
    """Entry point."""
    run_stage("report", stage)


if __name__ == "__main__":
    main()
