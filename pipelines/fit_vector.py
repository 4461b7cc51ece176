"""A run of activations in, steering vectors and their figures on held-out groups out.

`python -m pipelines.fit_vector experiment=demo`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from easysteer_data.errors import SettingsError
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import open_run
from easysteer_data.vectors import (
    ContrastSource,
    FittedVectors,
    SteeringVector,
    VectorReport,
    export_gguf,
    export_npy,
    fit_vectors,
    make_estimators,
    save_vector,
    vector_report_json,
    vector_table,
)

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Fit steering vectors on the experiment's captured run; print and write the figures, write the best."""
    data, vector = settings.data, settings.vector
    if data.normalise != "none":
        raise SettingsError(
            f"data.normalise is {data.normalise!r}, but a steering vector is added to rows as they are "
            "captured; set data.normalise=none"
        )
    estimators = make_estimators(
        vector.estimators, C=vector.C, seed=vector.seed, orthogonal=vector.orthogonal
    )
    source = ContrastSource(
        open_run(run_folder(settings)),
        data.stream,
        data.layers,
        data.rows,
        confound=vector.confound,
        seed=data.seed,
    )
    fitted = fit_vectors(source, estimators)
    sys.stdout.write(f"{vector_table(fitted.report)}\n\n")
    _write(fitted, settings)
    return _summary(fitted.report)


def _write(fitted: FittedVectors, settings: ExperimentSettings) -> None:
    """vector.safetensors is the best estimator's; of several, each has a file of its own beside it."""
    out = Path(settings.out)
    save_vector(fitted.best, out / "vector.safetensors")
    written = ["vector.safetensors"]
    for name, one in fitted.vectors.items() if len(fitted.vectors) > 1 else ():
        save_vector(one, out / f"vector_{name}.safetensors")
        written.append(f"vector_{name}.safetensors")
    report = json.dumps(vector_report_json(fitted.report), indent=2, allow_nan=False)
    (out / "vector_report.json").write_text(f"{report}\n", encoding="utf-8")
    written.append("vector_report.json")
    if "gguf" in settings.vector.export:
        export_gguf(_without_block_0(fitted.best), out / "vector.gguf")
        written.append("vector.gguf")
    if "npy" in settings.vector.export:
        export_npy(fitted.best, out / "vector")
        written.append("vector/layer-*.npy")
    best = fitted.report.best.name
    sys.stdout.write(f"written to {out}: {', '.join(written)} (vector.* holds {best})\n")


def _without_block_0(vector: SteeringVector) -> SteeringVector:
    kept = [layer_id for layer_id in vector.layer_ids if layer_id > 0]
    if len(kept) < len(vector.layer_ids):
        sys.stdout.write("vector.gguf is without layer 0, which llama.cpp refuses\n")
    return vector.at(kept)


def _summary(report: VectorReport) -> Mapping[str, object]:
    best = report.best
    summary: dict[str, object] = {"vector": best.name}
    if best.best is not None:
        summary["best layer"] = best.best.layer
        if (test := best.best.test) is not None:
            summary["test AUROC"] = f"{test.auroc:.3f}"
            summary["test pairs"] = "-" if test.pair_accuracy is None else f"{test.pair_accuracy:.3f}"
    return summary | {"confounded by": best.confounded_by or "-"}


def main() -> None:
    """Entry point."""
    run_stage("fit_vector", stage)


if __name__ == "__main__":
    main()
