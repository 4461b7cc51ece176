"""Peak memory of `pipelines.capture` over a corpus ten times as long; prints JSON.

Each run is the stage in a process of its own, on a tiny random model. The KV cache is small enough for the
shorter corpus to go through all of it: its pages count as they are first touched, and are no growth.

    python scripts/bench/capture_memory.py [--prompts 2000 20000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def peak_mb(model: Path, folder: Path, n_prompts: int) -> float:
    """Peak resident memory of one capture of the last tokens of all layers."""
    corpus = folder / f"{n_prompts}.txt"
    corpus.write_text(
        "".join(f"Statement {i} is about the city of {i * 7919 % n_prompts}.\n" for i in range(n_prompts))
    )
    code = (
        "import resource, sys; from pipelines.capture import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(f'PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\\n')"
    )
    arguments = [
        "model=folder",
        f"model.path={model}",
        "model.dtype=float32",
        "corpus=txt",
        f"corpus.path={corpus}",
        "engine.options.kv_cache_memory_bytes=16777216",
        f"out={folder / str(n_prompts)}",
        "progress=false",
        "shards.max_buffer_gb=0.05",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("PEAK"))
    return int(line.split()[1]) / 1e3


def main() -> None:
    """Print both peaks and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs=2, default=[2000, 20000])
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.tiny import save_tiny

    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny(Path(folder) / "model")
        peaks = [peak_mb(model, Path(folder), n) for n in arguments.prompts]
    report = {"n_prompts": arguments.prompts, "peak_mb": peaks, "ratio": round(peaks[1] / peaks[0], 4)}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
