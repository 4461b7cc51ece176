"""What writing shards costs over the same capture whose proven rows are dropped; prints JSON.

One engine in this process runs the same corpus in turns, all tokens of four layers:

    python scripts/bench/write_overhead.py MODEL [--prompts 200] [--turns 5] [--storage float32]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def settings_for(model: str, corpus: Path, storage: str) -> Any:
    """An experiment that keeps every prompt token of four layers."""
    from easysteer_data.settings import ExperimentSettings, build

    values: dict[str, Any] = {
        "name": "write-overhead",
        "out": str(corpus.parent),
        "progress": False,
        "model": {"path": model, "dtype": "float32", "max_model_len": 512},
        "corpus": {"path": str(corpus)},
        "capture": {"layers": [3, 10, 17, 24], "storage": storage},
        "select": {"prompt": "all"},
        "engine": {"enforce_eager": True, "in_process": True, "max_num_seqs": 32},
    }
    return build(ExperimentSettings, values)


@contextmanager
def dropped_after_the_gates() -> Iterator[None]:
    """Rows are collected, ordered and proven as always, and then not written."""
    from easysteer_data.shards import RunWriter

    write, close = RunWriter.write, RunWriter.close

    class Nothing:
        number, n_bytes = 0, 0

    RunWriter.write = lambda _self, _shard: Nothing()  # type: ignore[assignment, method-assign, return-value]
    RunWriter.close = lambda self, _measured=None: self.__exit__(None, None, None) or Nothing()  # type: ignore
    Nothing.n_rows = 0  # type: ignore[attr-defined]
    try:
        yield
    finally:
        RunWriter.write, RunWriter.close = write, close  # type: ignore[method-assign]


def main() -> None:
    """Run both kinds in turns; print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--storage", default="float32")
    arguments = parser.parse_args()
    from easysteer_data.capture_run import capture_corpus, plan_capture
    from easysteer_data.engine.open import open_llm

    folder = Path(tempfile.mkdtemp(prefix="write-overhead-"))
    corpus = folder / "corpus.txt"
    sentence = "The quick brown fox jumps over the lazy dog and runs along the river into town. "
    corpus.write_text("".join(f"{i}: {sentence * (1 + i % 5)}\n" for i in range(arguments.prompts)))
    settings = settings_for(arguments.model, corpus, arguments.storage)
    plan = plan_capture(settings)
    llm = open_llm(
        arguments.model,
        layers=settings.capture.layers,
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        in_process=True,
        max_num_seqs=32,
        kv_cache_memory_bytes=2**29,
    )

    def timed() -> float:
        out = folder / "run"
        started = time.perf_counter()
        capture_corpus(settings, out, plan, llm)
        spent = time.perf_counter() - started
        shutil.rmtree(out)
        return spent

    timed()
    times: dict[str, list[float]] = {"dropped": [], "written": []}
    for _ in range(arguments.turns):
        with dropped_after_the_gates():
            times["dropped"].append(timed())
        times["written"].append(timed())
    ratios = [w / d for w, d in zip(times["written"], times["dropped"], strict=True)]
    report = {
        "ratio": round(statistics.median(ratios), 4),
        "storage": arguments.storage,
        "n_prompts": arguments.prompts,
        "n_rows": sum(plan.n_rows),
        "seconds": {name: [round(t, 2) for t in values] for name, values in times.items()},
    }
    shutil.rmtree(folder)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
