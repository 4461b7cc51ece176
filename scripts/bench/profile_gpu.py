"""Where the time of a capture goes: clocks in the engine's and the driver's process, and a profiler's traces.

    python scripts/bench/profile_gpu.py MODEL --out FOLDER [the options of capture_gpu.py]

Prints a line of JSON a case: its seconds, the driver's phases, and for each part of the engine's process the
milliseconds a call and the calls. The traces in FOLDER show the copies between the kernels.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capture_gpu import arguments_parser, options
from load import FIRST, LAST, NEW, Load
from phases import driver_phases

# The child that runs the engine imports `counted_worker`.
os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"


def cases(load: Load, llm: Any) -> dict[str, Callable[[], None]]:
    """What is timed."""
    depth = load.n_layers
    found: dict[str, Callable[[], None]] = {
        "generate, idle": lambda: load.generate(llm, new=True),
        "generate, no new row": lambda: load.capture(llm, 1, FIRST, new=True),
        "idle": lambda: load.generate(llm, new=False),
        f"last of {depth}": lambda: load.capture(llm, depth, LAST, new=False),
    }
    for n in load.depths:
        found[f"generate, {n}"] = lambda n=n: load.capture(llm, n, NEW, new=True)
        found[f"all of {n}"] = lambda n=n: load.capture(llm, n, None, new=False)
    return found


def timed(llm: Any, action: Callable[[], None]) -> Mapping[str, Any]:
    """Run a case with all clocks on."""
    llm.collective_rpc("bench_clock")
    with driver_phases() as phases:
        begun = time.perf_counter()
        action()
        taken = time.perf_counter() - begun
    return {
        "seconds": round(taken, 3),
        "driver": {phase: round(spent, 4) for phase, spent in phases.items()},
        "engine": llm.collective_rpc("bench_clock")[0],
    }


def main() -> None:
    """Time everything, then trace a shorter generation and a shorter capture of prompts."""
    parser = arguments_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from easysteer_data import open_llm

    n_layers = json.loads((Path(arguments.model) / "config.json").read_text())["num_hidden_layers"]
    load = Load(n_layers, *arguments.load, int(arguments.buffer_gib * 2**30))
    arguments.out.mkdir(parents=True, exist_ok=True)
    llm = open_llm(
        **options(arguments),
        worker_cls="counted_worker.CountedWorker",
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": str(arguments.out),
            "torch_profiler_with_stack": False,
            "torch_profiler_dump_cuda_time_total": False,
        },
    )
    for turn in range(arguments.turns + 1):
        for name, action in cases(load, llm).items():
            found = timed(llm, action)
            if turn:
                sys.stdout.write(json.dumps({"case": name, "turn": turn, **found}) + "\n")
                sys.stdout.flush()
    n_prompts, n_tokens, n_short, _ = arguments.load
    short = Load(n_layers, max(1, n_prompts // 3), n_tokens, n_short, 24, load.buffer_bytes)
    for new, select in ((True, NEW), (False, None)):
        for n in load.depths[1:]:
            llm.start_profile()
            short.capture(llm, n, select, new=new)
            llm.stop_profile()


if __name__ == "__main__":
    main()
