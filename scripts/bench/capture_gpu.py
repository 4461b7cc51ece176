"""What a capture costs beside plain vLLM and beside others, in turns in one run; prints JSON and a table.

    python scripts/bench/capture_gpu.py MODEL [--turns 5] [--only NAME ...] [--peers] [--tensor-parallel 2]

MODEL is a folder with a config.json: weights are random and no tokenizer is needed. Each engine runs in a
child process, as vLLM does by default; all start and stand side by side and work one after the other, each
with a KV cache of a fixed size, since engines that start together can't measure what is free. "memory": all
rows are proven and handed to the caller by `capture_stream`. "shards": the capture stage's own code writes
every row to shards, in /dev/shm or in the folder --disk. On a CPU give a smaller load, as in README.md. Needs
no hydra.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from load import FIRST, LAST, NEW, SAMPLING, Load, check_rows
from peers import PEERS, open_peer
from shard_cases import LateSyncs, shard_case, write_inputs
from turns import Case, as_table, measure

BETWEEN_STARTS_S = 10  # what an engine sets up in this process is not meant for two threads

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


def _none() -> None:
    """No engine."""


class Bench:
    """The engines and what is measured with them."""

    def __init__(
        self,
        load: Load,
        options: dict[str, Any],
        *,
        with_eager: bool,
        with_few: bool,
        twice: bool,
        with_peers: bool,
    ) -> None:
        from vllm import LLM

        from easysteer_data import open_llm

        self.load = load
        self.has_pipeline = options["pipeline_parallel_size"] > 1
        self.few_layers = load.spread(min(4, load.n_layers))
        starts = [partial(LLM, **options), partial(open_llm, **options)]
        starts.append(partial(open_llm, **{**options, "enforce_eager": True}) if with_eager else _none)
        starts.append(partial(open_llm, layers=self.few_layers, **options) if with_few else _none)
        starts.append(partial(LLM, **options) if twice else _none)
        with ThreadPoolExecutor() as pool:
            engines = []
            for start in starts:
                engines.append(pool.submit(start))
                time.sleep(BETWEEN_STARTS_S if start is not _none else 0)
        self.plain, self.tapped, self.eager, self.few, self.again = (engine.result() for engine in engines)
        self.long = load.prompts(load.n_tokens)
        self.peers = {
            name: open_peer(name, options, load.spread(min(4, load.n_layers)), self.long[:32])
            for name in (PEERS if with_peers else ())
        }

    def sample(self) -> dict[str, float]:
        """Rows of three prompts of the whole load beside those of the same prompts run alone.

        Returns:
            Largest difference of a row, relative to its largest value, and least cosine.
        """
        from easysteer_data import capture

        n, layers = self.load.n_tokens, self.load.spread(min(4, self.load.n_layers))
        whole = capture(self.tapped, self.long, layers=layers, **SAMPLING)
        differences, cosines = [], []
        for i in random.Random(1).sample(range(len(self.long)), 3):  # noqa: S311
            alone = capture(self.eager or self.tapped, [self.long[i]], layers=layers, **SAMPLING)
            for layer in layers:
                rows = whole.rows(layer)[i * n : (i + 1) * n].float()
                expected = alone.rows(layer).float()
                differences.append(((rows - expected).abs().amax(1) / expected.abs().amax(1)).max().item())
                cosines.append(torch.cosine_similarity(rows, expected).min().item())
        return {"largest difference": round(max(differences), 5), "least cosine": round(min(cosines), 6)}

    def generated_sample(self) -> float:
        """Least cosine between generated rows of the whole load and those of the same tokens as a prompt."""
        from easysteer_data import capture

        n, layers = self.load.n_short, self.load.spread(min(4, self.load.n_layers))
        prompts, cosines = self.load.prompts(n), []
        whole = capture(self.tapped, prompts, min(24, self.load.n_new), layers=layers, select=NEW, **SAMPLING)
        for i in random.Random(2).sample(range(len(prompts)), 3):  # noqa: S311
            read = [*prompts[i]["prompt_token_ids"], *whole.outputs[i].outputs[0].token_ids[:-1]]
            as_prompt = capture(self.tapped, [{"prompt_token_ids": read}], layers=layers, **SAMPLING)
            for layer, rows in whole.sample(i).items():
                expected = as_prompt.rows(layer)[n:].float()
                cosines.append(torch.cosine_similarity(rows.float(), expected).min().item())
        return round(min(cosines), 6)

    def shard_cases(self, arguments: argparse.Namespace) -> Iterator[Case]:
        """Shards of all prompt tokens in shared memory and on a disk; runs are removed at the end."""
        yield Case(
            "plain, beside shards", "plain, beside shards", lambda: self.load.generate(self.plain, new=False)
        )
        prompts = [prompt["prompt_token_ids"] for prompt in self.long]
        for place, parent in (("/dev/shm", "/dev/shm"), ("disk", arguments.disk)):  # noqa: S108
            folder = Path(tempfile.mkdtemp(prefix="capture-bench-", dir=parent))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            write_inputs(folder, Path(arguments.model), prompts)
            # Every layer is more than a disk takes.
            for n in self.load.depths if place != "disk" else self.load.depths[:-1]:
                capture = shard_case(
                    self.tapped, folder, self.load.spread(n), arguments.dtype, arguments.rows_gb
                )
                n_rows = self.load.n_prompts * self.load.n_tokens
                remove = partial(shutil.rmtree, folder / "run", ignore_errors=True)
                yield Case(
                    f"shards in {place}, {n} layers, all",
                    "plain, beside shards",
                    lambda capture=capture, n_rows=n_rows: check_rows(capture(), n_rows),
                    remove,
                )
                if place == "disk":
                    syncs = LateSyncs()
                    yield Case(
                        f"shards in {place}, {n} layers, all, without the last fsyncs",
                        "plain, beside shards",
                        lambda capture=capture, n_rows=n_rows, syncs=syncs: check_rows(
                            syncs.around(capture), n_rows
                        ),
                        remove,
                        syncs.catch_up,
                    )

    def peer(self, name: str) -> None:
        """The same rows by another."""
        capture = self.peers[name]
        if not isinstance(capture, str):
            check_rows(capture(self.long), self.load.n_prompts * self.load.n_tokens)

    def cases(self) -> Iterator[Case]:
        """What is measured, and beside what."""
        load, depth = self.load, self.load.n_layers
        yield Case("plain", "plain", lambda: load.generate(self.plain, new=False))
        if self.again is not None:
            yield Case("plain again", "plain", lambda: load.generate(self.again, new=False))
        if self.eager is not None:
            yield Case("eager, tapped, idle", "plain", lambda: load.generate(self.eager, new=False))
        yield Case("tapped, idle", "plain", lambda: load.generate(self.tapped, new=False))
        for n in load.depths:
            yield Case(
                f"memory, {n} layers, all", "plain", lambda n=n: load.capture(self.tapped, n, None, new=False)
            )
        yield Case(
            f"memory, {depth} layers, last",
            "plain",
            lambda: load.capture(self.tapped, depth, LAST, new=False),
        )
        for name, capture in self.peers.items():
            if not isinstance(capture, str):
                yield Case(f"{name}, 4 layers, all", "plain", lambda name=name: self.peer(name))
        yield Case("generate", "generate", lambda: load.generate(self.plain, new=True))
        if self.has_pipeline:
            # It is as fast as its batches are even, which is how requests are put in.
            yield Case("generate, fed as a capture", "generate", lambda: load.feed(self.plain))
        if self.again is not None:
            yield Case("generate again", "generate", lambda: load.generate(self.again, new=True))
        if self.eager is not None:
            eager = self.eager
            yield Case("generate eager, idle", "generate", lambda: load.generate(eager, new=True))
            yield Case("generate eager, 4 layers", "generate", lambda: load.capture(eager, 4, NEW, new=True))
        yield Case("generate tapped, idle", "generate", lambda: load.generate(self.tapped, new=True))
        yield Case("generate, no new row", "generate", lambda: load.capture(self.tapped, 1, FIRST, new=True))
        for n in load.depths:
            yield Case(
                f"generate, {n} layers", "generate", lambda n=n: load.capture(self.tapped, n, NEW, new=True)
            )
        if self.few is not None:
            few, n = self.few, len(self.few_layers)
            yield Case(
                f"only {n} layers tapped, memory, {n} layers, all",
                "plain",
                lambda: load.capture(few, n, None, new=False),
            )
            yield Case(
                f"only {n} layers tapped, generate, idle", "generate", lambda: load.generate(few, new=True)
            )
            yield Case(
                f"only {n} layers tapped, generate, {n} layers",
                "generate",
                lambda: load.capture(few, n, NEW, new=True),
            )


def arguments_parser(description: str | None) -> argparse.ArgumentParser:
    """What is measured, on which engines."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--enforce-eager", action="store_true", help="all engines eager")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, default=22)
    parser.add_argument("--buffer-gib", type=float, default=24)
    parser.add_argument(
        "--load",
        type=int,
        nargs=4,
        default=[256, 512, 32, 128],
        metavar="N",
        help="prompts, their tokens, tokens of those that generate, tokens to generate",
    )
    return parser


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = arguments_parser(__doc__)
    parser.add_argument("--no-eager", action="store_true", help="without an eager engine beside the compiled")
    parser.add_argument("--few", action="store_true", help="also an engine that is tapped at 4 layers only")
    parser.add_argument("--twice", action="store_true", help="also a second plain engine, beside the first")
    parser.add_argument("--peers", action="store_true", help="also what others offer, if it is installed")
    parser.add_argument("--only", nargs="*", help="cases to measure, by the start of their names")
    parser.add_argument("--disk", help="folder for shards on a disk; the temporary folder unless given")
    parser.add_argument("--rows-gb", type=float, default=48, help="rows of all layers in memory at once")
    return parser.parse_args()


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments that all engines share."""
    return {
        "model": arguments.model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": arguments.dtype,
        "max_model_len": 2048,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "gpu_memory_utilization": 0.3,
        "kv_cache_memory_bytes": int(arguments.kv_gib * 2**30),
        "enforce_eager": arguments.enforce_eager,
        "tensor_parallel_size": arguments.tensor_parallel,
        "pipeline_parallel_size": arguments.pipeline_parallel,
    }


def of_interest(cases: Iterable[Case], names: Sequence[str] | None) -> list[Case]:
    """The cases whose names begin so, what they are compared with, and so on; all without names."""
    listed = list(cases)
    wanted = {case.name for case in listed if names is None or case.name.startswith(tuple(names))}
    for case in reversed(listed):  # what a case is compared with comes before it
        if case.name in wanted:
            wanted.add(case.beside)
    return [case for case in listed if case.name in wanted]


def main() -> None:
    """Measure and print."""
    from easysteer_data.engine.channel import remove_mailboxes

    arguments = parse()
    started = time.perf_counter()
    n_layers = json.loads((Path(arguments.model) / "config.json").read_text())["num_hidden_layers"]
    load = Load(n_layers, *arguments.load, int(arguments.buffer_gib * 2**30))
    bench = Bench(
        load,
        options(arguments),
        with_eager=not arguments.no_eager,
        with_few=arguments.few,
        twice=arguments.twice,
        with_peers=arguments.peers,
    )
    sys.stderr.write(f"engines ready after {time.perf_counter() - started:.0f} s\n")
    report = measure(of_interest(bench.cases(), arguments.only), arguments.turns)
    sample, generated = bench.sample(), bench.generated_sample()
    remove_mailboxes(bench.tapped)  # the stage asks for less than the cases so far have made
    report |= measure(of_interest(bench.shard_cases(arguments), arguments.only), arguments.turns)
    facts = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "shared_memory_gb": round(shutil.disk_usage("/dev/shm").total / 1e9),  # noqa: S108
        **vars(arguments),
        "model": Path(arguments.model).name,
        "rows in the batch beside rows alone": sample,
        "generated rows beside rows of the same tokens as a prompt": generated,
        "left out": {name: why for name, why in bench.peers.items() if isinstance(why, str)},
    }
    sys.stdout.write(json.dumps({**facts, "cases": report}) + "\n" + as_table(report))


if __name__ == "__main__":
    main()
