"""Rows/s of the data module beside other ways to read the same activations; prints JSON.

Runs are made up in a temporary folder and read until they are in the page cache; every way then takes turns.
The data module gives x, y, prompt, position and token_id of every row, from mapped files (0 and 2 workers)
and from a copy in memory (`loading.in_memory`); the in-RAM gathers give x alone, unless it is said:

`of_` is the better of the first two, `in_memory_of_` the copy in memory, each of a gather's speed:

- `in_ram_gather`: x[rows] of one tensor [N, L, width] in memory.
- `in_ram_index_select`: the same by torch.index_select, torch's fastest way.
- `in_ram_same_batch`: x and the four columns, each by index_select.
- `in_ram_layers_apart`: index_select where each layer has its own memory, as layers have their own files.

    python scripts/bench/loader.py [--folder DIR] [--turns 5] [--mib 600] [--threads 1]
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from safetensors.torch import save

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.shards import (
    LabelHeader,
    RunHeader,
    RunWriter,
    StreamHeader,
    decode_safetensors,
    open_run,
    plan_shards,
)
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, RowIndex

BATCH_SIZE = 256
N_LAYERS = 8
WIDTHS = (576, 4096)
LEAST_SECONDS = 1.0  # of one measurement

SETUP = """
import json, sys, time
from pathlib import Path
from easysteer_data.datamodule import ActivationDataModule

def peak_mib():  # not getrusage, which counts the parent process in
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) / 1024

before, started = peak_mib(), time.perf_counter()
datamodule = ActivationDataModule(sys.argv[1], layers=0, dtype="float16")
datamodule.setup("fit")
loader = datamodule.train_dataloader()
ready, used = time.perf_counter(), peak_mib() - before
next(iter(loader))
first = time.perf_counter()
print(json.dumps({"setup_s": round(ready - started, 3), "setup_mib": round(used, 1),
                  "first_batch_s": round(first - ready, 3)}))
"""


def write_run(folder: Path, n_rows: int, width: int, n_layers: int, n_prompt_rows: int) -> Path:
    """A run of random float16 rows, all of them to train on, in about four shards."""
    stream = StreamHeader(tuple(range(n_layers)), width, "float16")
    counts = [n_prompt_rows] * (n_rows // n_prompt_rows)
    header = RunHeader(
        fingerprint=f"bench-{n_rows}-{width}",
        settings={},
        model={},
        tokenizer={},
        corpus={},
        versions={},
        layer_convention="random",
        streams={"hidden_states": stream},
        label=LabelHeader("classes", ("false", "true")),
        plan=plan_shards(counts, stream.row_bytes, min_shards=4),
    )
    random = torch.Generator().manual_seed(0)
    writer = RunWriter.open(folder, header)
    for number, (start, stop) in enumerate(header.plan):
        prompts = tuple(
            CapturedPrompt(Prompt(i, str(i), "", f"bench:{i}", ("false", "true")[i % 2]), n_prompt_rows)
            for i in range(start, stop)
        )
        prompt = torch.arange(start, stop, dtype=torch.int32).repeat_interleave(n_prompt_rows)
        position = torch.arange(n_prompt_rows, dtype=torch.int32).repeat(stop - start)
        values = {
            layer: torch.randn(len(prompt), width, generator=random).half() for layer in range(n_layers)
        }
        index = RowIndex(prompt, position, prompt)
        writer.write(CapturedShard(number, prompts, index, {"hidden_states": values}))
    writer.close()
    return folder


def write_naive(path: Path, rows: torch.Tensor) -> None:
    """One WebDataset sample a prompt: its row as safetensors, its label as JSON."""
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(rows):
            members = {
                "safetensors": save({"rows": row[None]}),
                "json": json.dumps({"y": number % 2}).encode(),
            }
            for kind, data in members.items():
                info = tarfile.TarInfo(f"{number:08d}.{kind}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def rate(batches: Callable[[], Iterable[Any]], rows_of: Callable[[Any], int] = len) -> float:
    """Rows/s over whole passes, for a second at least; the batches are thrown away."""
    n_rows, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < LEAST_SECONDS:
        for batch in batches():
            n_rows += rows_of(batch)
    return n_rows / seconds


def ways(run: Path, layers: int | list[int], naive: Path | None) -> dict[str, Callable[[], float]]:
    """Name -> one measurement, all of the same rows in random order in batches of the same size."""
    data = open_run(run)
    chosen = [layers] if isinstance(layers, int) else layers
    x = data.gather("hidden_states", chosen, torch.arange(data.n_rows))
    x = x.squeeze(1) if isinstance(layers, int) else x

    def in_ram(gather: Callable[[torch.Tensor], torch.Tensor]) -> Iterable[torch.Tensor]:
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
        return map(gather, order.split(BATCH_SIZE))

    def ours(num_workers: int, in_memory: bool = False) -> Callable[[], float]:
        loader = ActivationDataModule(
            run,
            layers,
            batch_size=BATCH_SIZE,
            num_workers=num_workers,
            dtype="float16",
            loading={"in_memory": in_memory},
        ).train_dataloader()
        for _ in loader:  # starts the workers and maps the files
            pass
        return lambda: rate(lambda: loader, lambda batch: len(batch["x"]))

    columns = (data.labels, data.index.prompt, data.index.position, data.index.token_id)

    def same_batch(rows: torch.Tensor) -> torch.Tensor:
        batch = [values.index_select(0, rows) for values in (x, *columns)]
        return batch[0]

    measured = {
        "datamodule_0_workers": ours(0),
        "datamodule_2_workers": ours(2),
        "datamodule_in_memory": ours(0, in_memory=True),
        "in_ram_gather": lambda: rate(lambda: in_ram(lambda rows: x[rows])),
        "in_ram_index_select": lambda: rate(lambda: in_ram(lambda rows: x.index_select(0, rows))),
        "in_ram_same_batch": lambda: rate(lambda: in_ram(same_batch)),
    }
    if not isinstance(layers, int):
        apart = [x[:, place].contiguous() for place in range(len(layers))]

        def stacked(rows: torch.Tensor) -> torch.Tensor:
            return torch.stack([layer.index_select(0, rows) for layer in apart], dim=1)

        measured["in_ram_layers_apart"] = lambda: rate(lambda: in_ram(stacked))
    if naive is not None:
        data_set = torch.utils.data.TensorDataset(x, data.labels)
        default = torch.utils.data.DataLoader(data_set, BATCH_SIZE, shuffle=True)
        measured["tensor_dataset"] = lambda: rate(lambda: default, lambda batch: len(batch[0]))
        samples = wds.WebDataset([str(naive)], shardshuffle=False).decode(decode_safetensors)
        rows = samples.map(lambda s: (s["safetensors"]["rows"][0], s["json"]["y"])).batched(BATCH_SIZE)
        measured["naive_webdataset"] = lambda: rate(lambda: rows, lambda batch: len(batch[0]))
    return measured


def measure(run: Path, layers: int | list[int], turns: int, naive: Path | None) -> dict[str, float]:
    """Median rows/s of each way, and the ratios that matter, turn by turn."""
    measured = ways(run, layers, naive)
    found: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(turns):
        for name, way in measured.items():
            found[name].append(way())
    result = {name: round(statistics.median(rates)) for name, rates in found.items()}
    best = max(("datamodule_0_workers", "datamodule_2_workers"), key=lambda name: result[name])
    for name in sorted(name for name in measured if name.startswith("in_ram")):
        for prefix, ours in (("of", best), ("in_memory_of", "datamodule_in_memory")):
            ratios = [a / b for a, b in zip(found[ours], found[name], strict=True)]
            result[f"{prefix}_{name}"] = round(statistics.median(ratios), 3)
    if naive is not None:
        result["times_naive_webdataset"] = round(result[best] / result["naive_webdataset"], 1)
    return result


def shuffles(run: Path) -> dict[str, Any]:
    """How well block shuffles mix the packs of a run."""
    options = {f"window of {n} rows": {"shuffle": "blocks", "window_rows": n} for n in (4096, 16_384, 65_536)}
    options |= {"full": {"shuffle": "rows"}, "stored order": {"shuffle": "none"}}
    return {
        name: {
            key: round(value, 3)
            for key, value in asdict(
                ActivationDataModule(run, layers=0, batch_size=BATCH_SIZE, order=order).shuffle_quality()
            ).items()
        }
        for name, order in options.items()
    }


def main() -> None:
    """Make the runs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--mib", type=int, default=600, help="size of all layers of a run")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch in each process; loader processes have one"
    )
    parser.add_argument("--setup-rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=ResourceWarning)
    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {"batch_size": BATCH_SIZE, "dtype": "float16", "unit": "rows/s"}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        for width in WIDTHS:
            n_rows = (arguments.mib << 20) // (width * 2 * N_LAYERS) // 10 * 10
            run = write_run(folder / f"run-{width}", n_rows, width, N_LAYERS, 10)
            naive = folder / f"naive-{width}.tar"
            rows = open_run(run).gather("hidden_states", [0], torch.arange(min(n_rows, 10_000)))
            write_naive(naive, rows[:, 0])
            report[f"width_{width}"] = {
                "n_rows": n_rows,
                "1_layer": measure(run, 0, arguments.turns, naive),
                f"{N_LAYERS}_layers": measure(run, list(range(N_LAYERS)), arguments.turns, None),
                "shuffles": shuffles(run),
            }
            gc.collect()
        big = write_run(folder / "setup", arguments.setup_rows, 64, 1, 1)
        done = subprocess.run(
            [sys.executable, "-c", SETUP, str(big)], capture_output=True, text=True, check=True
        )
        report["setup"] = {"n_rows": arguments.setup_rows, **json.loads(done.stdout)}
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
