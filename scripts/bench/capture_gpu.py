"""What a capture costs beside plain vLLM on a GPU, in turns in one run; prints JSON and a Markdown table.

    python scripts/bench/capture_gpu.py MODEL [--turns 5] [--only NAME ...]

MODEL is a folder with a config.json: weights are random and no tokenizer is needed. Each engine runs in a
child process, as vLLM does by default; all start and stand side by side on the GPU and work one after the
other, each with a KV cache of 22 GiB, since engines that start together can't measure what is free.
"memory": all rows are proven and handed to the caller by `capture_stream`. Needs no hydra.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phases import driver_phases

N_PROMPTS, N_TOKENS = 256, 512
N_SHORT, N_NEW = 32, 128
BUFFER_BYTES = 24 * 2**30
_BETWEEN_STARTS_S = 10  # what an engine sets up in this process is not meant for two threads
SAMPLING = {"ignore_eos": True, "detokenize": False}

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


def prompts(n_tokens: int) -> list[dict[str, list[int]]]:
    """Random prompts of equal length."""
    rng = random.Random(0)  # noqa: S311
    return [
        {"prompt_token_ids": [rng.randrange(1000, 30000) for _ in range(n_tokens)]} for _ in range(N_PROMPTS)
    ]


def options(model: str, n_tensor: int, n_pipeline: int) -> dict[str, Any]:
    """Arguments that all engines share."""
    return {
        "tensor_parallel_size": n_tensor,
        "pipeline_parallel_size": n_pipeline,
        "model": model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "gpu_memory_utilization": 0.3,
        "kv_cache_memory_bytes": 22 * 2**30,
    }


class Bench:
    """The engines and what is measured with them."""

    def __init__(self, shared: dict[str, Any], with_eager: bool) -> None:
        from vllm import LLM

        from easysteer_data import open_llm

        with ThreadPoolExecutor() as pool:
            plain = pool.submit(LLM, **shared)
            time.sleep(_BETWEEN_STARTS_S)
            tapped = pool.submit(open_llm, **shared)
            time.sleep(_BETWEEN_STARTS_S)
            eager = pool.submit(LLM, **shared, enforce_eager=True) if with_eager else None
        self.plain, self.tapped = plain.result(), tapped.result()
        self.eager = None if eager is None else eager.result()
        self.long, self.short = prompts(N_TOKENS), prompts(N_SHORT)
        self.peaks: dict[str, int] = {}

    def generate(self, llm: Any, new: bool) -> None:
        """Plain generation."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=N_NEW if new else 1, temperature=0, **SAMPLING)
        llm.generate(self.short if new else self.long, sampling, use_tqdm=False)

    def memory(self, layers: list[int], select: dict[str, Any] | None, new: bool) -> None:
        """Capture, rows proven and handed over."""
        from easysteer_data import capture_stream

        n_rows = 0
        for part in capture_stream(
            self.tapped,
            self.short if new else self.long,
            max_tokens=N_NEW if new else 1,
            layers=layers,
            select=select,
            # Where a part of all layers fits a box, it is handed over where it arrived.
            batch_prompts=64 if new or select else 16 if len(layers) <= 4 else 2,
            buffer_bytes=BUFFER_BYTES,
            **SAMPLING,
        ):
            n_rows += len(part.layers[layers[0]])
        expected = N_PROMPTS * (N_TOKENS if select is None else N_NEW - 1 if select == NEW else 1)
        if n_rows != expected:
            raise SystemExit(f"{n_rows} rows came, {expected} were expected")

    def cases(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """(name, what it is compared with, what it does)."""
        yield "plain", "plain", lambda: self.generate(self.plain, False)
        if self.eager is not None:
            yield "plain eager", "plain", lambda: self.generate(self.eager, False)
        yield "tapped, idle", "plain", lambda: self.generate(self.tapped, False)
        for n in (1, 4, 32):
            yield f"memory, {n} layers, all", "plain", lambda n=n: self.memory(spread(n), None, False)
        yield "memory, 32 layers, last", "plain", lambda: self.memory(spread(32), LAST, False)
        yield "generate", "generate", lambda: self.generate(self.plain, True)
        if self.eager is not None:
            yield "generate eager", "generate", lambda: self.generate(self.eager, True)
        yield "generate tapped, idle", "generate", lambda: self.generate(self.tapped, True)
        first = {"prompt_positions": [0]}
        yield "generate, no new row", "generate", lambda: self.memory(spread(4), first, True)
        for n in (1, 4, 32):
            yield f"generate, {n} layers", "generate", lambda n=n: self.memory(spread(n), NEW, True)


LAST = {"prompt_positions": [-1]}
NEW = {"generation": "all"}


def spread(n: int) -> list[int]:
    """N of 32 layers, evenly."""
    return [32 * (i + 1) // n - 1 for i in range(n)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="cases to measure, by the start of their names")
    arguments = parser.parse_args()
    started = time.perf_counter()
    shared = options(arguments.model, arguments.tensor_parallel, arguments.pipeline_parallel)
    bench = Bench(shared, not arguments.no_eager)
    sys.stderr.write(f"engines ready after {time.perf_counter() - started:.0f} s\n")
    cases = [
        case
        for case in bench.cases()
        if not arguments.only or any(case[0].startswith(start) for start in (*arguments.only, case[1]))
    ]
    times: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    where: dict[str, dict[str, float]] = {}
    for turn in range(arguments.turns + 2):
        for name, _, action in cases:
            faulthandler.dump_traceback_later(60)  # says where a case hangs
            begun = time.perf_counter()
            if turn == 0:  # warms up
                action()
            elif turn <= arguments.turns:
                action()
                times[name].append(time.perf_counter() - begun)
            else:
                with driver_phases() as phases:
                    action()
                where[name] = {phase: round(spent, 4) for phase, spent in phases.items()}
                sys.stderr.write(f"{where[name]}\n")
            faulthandler.cancel_dump_traceback_later()
            sys.stderr.write(f"{name}: {time.perf_counter() - begun:.2f} s\n")
        sys.stderr.write(f"turn {turn}: {time.perf_counter() - started:.0f} s\n")
    report = {
        name: {
            "seconds": round(statistics.median(times[name]), 3),
            "all": [round(t, 3) for t in times[name]],
            "ratio": round(
                statistics.median(b / t for b, t in zip(times[base], times[name], strict=True)), 4
            ),
            "seconds of the driver": where[name],
        }
        for name, base, _ in cases
    }
    import torch

    facts = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "shared_memory_gb": round(shutil.disk_usage("/dev/shm").total / 1e9),  # noqa: S108
        "model": Path(arguments.model).name,
        "tensor_parallel": arguments.tensor_parallel,
        "pipeline_parallel": arguments.pipeline_parallel,
    }
    sys.stdout.write(json.dumps({**facts, "cases": report}) + "\n")
    for name, entry in report.items():
        sys.stdout.write(f"| {name} | {entry['seconds']:.2f} s | {entry['ratio']:.3f} |\n")


if __name__ == "__main__":
    main()
