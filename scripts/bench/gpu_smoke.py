"""On a GPU: rows of compiled engines, CUDA graphs on, against the eager engine and Hugging Face; prints JSON.

`python scripts/bench/gpu_smoke.py` opens its engines in processes of their own, a few side by side: V2
runner compiled, eager and untapped; V1 runner compiled; the steered ones, eager and compiled; with experts;
where there are two GPUs, tensor-parallel and pipeline ones. Needs vllm and transformers, no model: it makes
random ones, and no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from smoke_compare import entry_of, equal_tokens, hugging_face_rows, told
from smoke_engines import ALL, LAYERS, make_models, run_engine


def engine_process(kind: str, folder: Path, gpu: str) -> str:
    """Run one engine in a process of its own, on one GPU if it needs no more.

    Returns:
        Its output if it failed, else nothing.
    """
    started = time.perf_counter()
    command = [sys.executable, __file__, "--engine", kind, "--folder", str(folder)]
    environment = os.environ if "size" in ALL[kind] else {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    took = time.perf_counter() - started
    print(f"{kind}: exit code {done.returncode} after {took:.0f} s", file=sys.stderr, flush=True)
    if done.returncode == 0:
        return ""
    print(done.stderr[-3000:], file=sys.stderr, flush=True)
    return (done.stdout + done.stderr)[-3000:]


def main() -> None:
    """Run every engine and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ALL)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="*", help="engines to run, a model's eager one among them")
    parser.add_argument("--side-by-side", type=int, default=4, help="engines at a time")
    arguments = parser.parse_args()
    if arguments.engine:
        run_engine(arguments.engine, arguments.folder)
        return
    folder = Path(tempfile.mkdtemp(prefix="gpu-smoke-"))
    make_models(folder)
    n_gpus = torch.cuda.device_count()
    if not n_gpus:
        parser.error("no GPU is there")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(n_gpus)))).split(",")
    chosen = arguments.only or [kind for kind, options in ALL.items() if n_gpus > 1 or "size" not in options]
    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        gpus = [visible[i % n_gpus] for i in range(len(chosen))]
        failures = pool.map(engine_process, chosen, [folder] * len(chosen), gpus)
        errors = dict(zip(chosen, failures, strict=True))
    entries = {kind: {"error": error} for kind, error in errors.items() if error}
    for kind in chosen:
        if kind not in entries:
            entries[kind] = entry_of(kind, folder)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "layers": LAYERS, "engines": entries}
    for name, tapped, untapped in (
        ("bfloat16", "compiled_v2", "untapped_v2"),
        ("float32", "compiled_float32", "untapped_float32"),
    ):
        if {tapped, untapped} <= {*chosen} - {kind for kind, error in errors.items() if error}:
            same = equal_tokens(told(tapped, folder)["tokens"], told(untapped, folder)["tokens"])
            report[f"prompts with equal tokens, tapped and untapped, {name}"] = same
    if not errors.get("eager_v2", "not chosen"):
        report["eager_v2 against Hugging Face"] = hugging_face_rows(folder / "llama", folder)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
