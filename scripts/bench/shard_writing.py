"""How fast a shard's rows become files, by threads: statistics alone, and all of it; prints JSON.

    python scripts/bench/shard_writing.py [--layers 4] [--rows 16384] [--width 4096] [--threads 1 2 4 8]

No engine and no model: made-up bfloat16 rows, as one shard of a run, into a folder in /dev/shm or --out.
Numbers of threads are measured in turns; each line has GB of rows a second, the median of --turns.
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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from easysteer_data.shards import LabelHeader, RunHeader, StreamHeader, plan_shards, shard_files, shard_work
from easysteer_data.shards import side_by_side as side
from easysteer_data.types import SPLITS, CapturedPrompt, CapturedShard, Prompt, RowIndex

N_TOKENS = 512  # of a prompt


def made_shard(
    n_layers: int, n_rows: int, width: int, storage: str = "bfloat16"
) -> tuple[RunHeader, CapturedShard]:
    """One shard that is a whole run."""
    n_prompts = n_rows // N_TOKENS
    position = torch.arange(N_TOKENS, dtype=torch.int32).repeat(n_prompts)
    index = RowIndex(
        torch.arange(n_prompts, dtype=torch.int32).repeat_interleave(N_TOKENS), position, position
    )
    generator = torch.Generator().manual_seed(0)
    values = {i: torch.randn(len(position), width, generator=generator).bfloat16() for i in range(n_layers)}
    prompts = tuple(
        CapturedPrompt(
            Prompt(i, f"p{i}", "", "made", None, None, SPLITS[i % len(SPLITS)], {}, (), ()), N_TOKENS, "", ()
        )
        for i in range(n_prompts)
    )
    header = RunHeader(
        fingerprint="0",
        settings={"select": None, "shards": {}},
        model={"name": "made"},
        tokenizer={},
        corpus={},
        versions={},
        layer_convention="",
        streams={"hidden_states": StreamHeader(tuple(range(n_layers)), width, storage)},
        label=LabelHeader(None, ()),
        plan=plan_shards([N_TOKENS] * n_prompts, 2 * width, shard_bytes=2**60),
    )
    return header, CapturedShard(0, prompts, index, {"hidden_states": values})


def measured(folder: Path, header: RunHeader, shard: CapturedShard) -> None:
    """The statistics of a shard's layers, which no file is written of."""
    with shard_work.ShardWork(folder, replace(header, rows=False), shard) as work:
        work.finish()
        work.result()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--storage", default="bfloat16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", help="folder on the disk to be measured")
    arguments = parser.parse_args()
    header, shard = made_shard(arguments.layers, arguments.rows, arguments.width, arguments.storage)
    n_gb = sum(rows.nbytes for rows in shard.values["hidden_states"].values()) / 1e9
    folder = Path(tempfile.mkdtemp(prefix="shard-bench-", dir=arguments.out or "/dev/shm"))  # noqa: S108
    shard_files.make_folders(folder, header)
    cases: dict[str, Callable[[], object]] = {
        "statistics": lambda: measured(folder, header, shard),
        "all": lambda: shard_files.write_shard(folder, header, shard),
    }
    found: dict[tuple[str, int], list[float]] = {}
    try:
        for _ in range(arguments.turns):
            for n_threads in arguments.threads:
                side.N_THREADS = n_threads
                for name, action in cases.items():
                    begun = time.perf_counter()
                    action()
                    found.setdefault((name, n_threads), []).append(n_gb / (time.perf_counter() - begun))
    finally:
        shutil.rmtree(folder)
    report = [
        {"what": name, "threads": n, "GB/s": round(statistics.median(speeds), 2)}
        for (name, n), speeds in found.items()
    ]
    sys.stdout.write(json.dumps({"cores": os.cpu_count(), **vars(arguments), "found": report}) + "\n")


if __name__ == "__main__":
    main()
