"""What a capture costs over plain generation: last-token rows of all layers, on the CPU; prints JSON.

Two engines in child processes, one as vLLM is released and one with taps, run the same prompts in turns:

    python scripts/bench/capture_overhead.py MODEL [--prompts 2000] [--turns 5] [--compiled]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


def prompts(model: str, n_prompts: int) -> list[dict[str, list[int]]]:
    """Token ids of n statements about cities."""
    from easysteer_data.corpus import CorpusSettings, read_corpus
    from easysteer_data.tokens import load_tokenizer

    texts = [prompt.text for prompt in read_corpus(CorpusSettings(path="builtin:city_facts"))]
    tokenizer = load_tokenizer(model)
    ids = tokenizer([f"{i}: {texts[i % len(texts)]}" for i in range(n_prompts)])["input_ids"]
    return [{"prompt_token_ids": one} for one in ids]


def seconds(action: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    """Open both engines, run them in turns, print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    from vllm import LLM, SamplingParams

    from easysteer_data import capture, open_llm

    options: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": not arguments.compiled,
        "max_model_len": 256,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 2**30,
    }
    plain, tapped = LLM(arguments.model, **options), open_llm(arguments.model, **options)
    given = prompts(arguments.model, arguments.prompts)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain.generate(given, sampling, use_tqdm=False),
        "capture": lambda: capture(tapped, given, select={"prompt_positions": [-1]}),
    }
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.turns):
        for name, run in runs.items():
            times[name].append(seconds(run))
    ratios = [c / p for c, p in zip(times["capture"], times["plain"], strict=True)]
    report = {
        "ratio": round(statistics.median(ratios), 4),
        "compiled": arguments.compiled,
        "n_prompts": arguments.prompts,
        "seconds": {name: [round(t, 2) for t in values] for name, values in times.items()},
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
