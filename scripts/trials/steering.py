"""Trials of steering vectors on public data and the demo's model, stage by stage from the command line.

    python -m scripts.trials.steering happiness --data FOLDER --out steering
    python -m scripts.trials.steering caa --data corrigible-neutral-HHH.json --out steering

Prints JSON. FOLDER holds representation engineering's happiness.json and sadness.json. A finished capture is
found again. Takes some minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(stage: str, experiment: str, data: Path, out: Path, *overrides: str) -> None:
    """Run a stage of an experiment; its output goes to stderr."""
    given = [f"experiment={experiment}", f"corpus.path={data}", f"out={out}", "progress=false"]
    command = [sys.executable, "-m", f"pipelines.{stage}", *given, *overrides]
    subprocess.run(command, check=True, stdout=sys.stderr)


def report_of(out: Path, name: str) -> Any:
    """A report that a stage wrote."""
    return json.loads((out / f"{name}.json").read_text())


def curve_of(report: Any, score: str) -> list[dict[str, Any]]:
    """A score of every curve, scale by scale."""
    return [
        {
            "layers": curve["layers"],
            "rising": curve["rising"],
            "usable": curve["usable"],
            score: {str(cell["scale"]): round(cell["figures"][score]["value"], 3) for cell in curve["cells"]},
        }
        for curve in report["curves"]
    ]


def happiness(data: Path, out: Path) -> dict[str, Any]:
    """Does the probe's score of generated text rise with the scale, and does erasing blind the probe?"""
    for stage in ("capture", "train_probe", "fit_vector", "steer"):
        run(stage, "happiness", data, out)
    found = {"direct": curve_of(report_of(out, "steer_report"), "probe")}
    run("steer", "happiness", data, out, "steer=erase", "steer.layers=null", "steer.prompts.split=test")
    return found | {"erase": curve_of(report_of(out, "steer_report"), "separation")}


def caa(data: Path, out: Path) -> dict[str, Any]:
    """Is the plain difference of means the answer's letter, and is the balanced one more than that?"""
    for stage in ("capture", "fit_vector", "steer"):
        run(stage, "caa_corrigible", data, out)
    vectors: dict[str, Any] = {}
    for estimator in report_of(out, "vector_report")["estimators"]:
        best = next(one for one in estimator["layers"] if one["layer"] == estimator["best_layer"])
        vectors[estimator["name"]] = {
            "best layer": best["layer"],
            "validation pairs": best["validation"]["pair_accuracy"],
            "test pairs": best["test"]["pair_accuracy"],
            "letter AUROC, test": best["test"]["confound_auroc"],
            "confounded by": estimator["confounded_by"],
            "confounded layers": len(estimator["confounded_layers"]),
        }
    return {"vectors": vectors, "direct": curve_of(report_of(out, "steer_report"), "answer")}


TRIALS = {"happiness": happiness, "caa": caa}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one trial."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    print(json.dumps(TRIALS[options.trial](options.data, options.out / options.trial), indent=2))


if __name__ == "__main__":
    main()
