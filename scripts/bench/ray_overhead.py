"""What Ray costs: seconds a shard in one process, with one actor and with two, of one model and corpus.

    nice python -m scripts.bench.ray_overhead MODEL [--prompts 8000] [--shards 12] > overhead.json

One process is measured before and after the actors. Cores are shared evenly between actors: Ray gives an
actor's engine as many threads as it has cores. The start of engines and actors is left out: the times are
those between the commits of shards, without the first ones and the last, which nothing follows. On a machine
whose cores one engine uses up, two actors are no faster than one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_N_LEFT_OUT = 3  # shards at the beginning, which actors get before others begin


def shard_seconds(run: Path) -> list[float]:
    """Seconds between the commits of shards, in their order."""
    lines = (run / "measured.jsonl").read_text().splitlines()
    return [float(json.loads(line)["wall_s"]) for line in lines]


def measure(asked: Any, out: Path) -> float:
    """Seconds a shard of one capture."""
    from easysteer_data.capture_run import capture_corpus

    capture_corpus(asked, out)
    seconds = shard_seconds(out)[_N_LEFT_OUT:-1]
    return sum(seconds) / len(seconds)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=8000)
    parser.add_argument("--shards", type=int, default=12)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from easysteer_data.settings import ExecutorSettings, ExperimentSettings, build

    figures: dict[str, Any] = {"prompts": options.prompts, "shards": options.shards, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as name:
        folder, words = Path(name), random.Random(0)  # noqa: S311
        lines = [{"text": "word " * words.randint(10, 40) + str(i)} for i in range(options.prompts)]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        values = {
            "name": "bench",
            "out": str(folder),
            "progress": False,
            "model": {"path": str(options.model), "dtype": "float32", "max_model_len": 512},
            "corpus": {"path": str(folder / "corpus.jsonl")},
            "engine": {
                "enforce_eager": True,
                "in_process": True,
                "options": {"kv_cache_memory_bytes": 2**28},
            },
            "shards": {"min_shards": options.shards, "min_free_gb": 0.1},
        }
        local = build(ExperimentSettings, values)
        ray = ExecutorSettings(kind="ray", options={"object_store_memory": 2**27})
        before_s = measure(local, folder / "before")
        for n_actors in (1, 2):
            cores = (os.cpu_count() or 1) / n_actors
            asked = replace(local, executor=replace(ray, n_actors=n_actors, num_cpus=cores))
            figures[f"ray_{n_actors}_s"] = round(measure(asked, folder / f"ray{n_actors}"), 4)
        after_s = measure(local, folder / "after")
    figures |= {"local_before_s": round(before_s, 4), "local_after_s": round(after_s, 4)}
    figures["local_s"] = round((before_s + after_s) / 2, 4)
    figures["shards_a_minute"] = round(60 / figures["local_s"], 1)
    figures["overhead"] = round(figures["ray_1_s"] / figures["local_s"] - 1, 3)
    figures["overhead_2_actors"] = round(figures["ray_2_s"] / figures["local_s"] - 1, 3)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
