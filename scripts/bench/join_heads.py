"""Attention heads of two ranks: each copies its own to the host, or one gathers all on the device; JSON.

`python scripts/bench/join_heads.py` on a machine with two GPUs. A capture does the former: the driver puts
rows in order anyway, and joins them by the way. Needs no vLLM and no model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import multiprocessing


def median_ms(action: Callable[[], None], n_turns: int) -> float:
    """Milliseconds until all ranks have done it, the median after a first time."""
    taken = []
    for _ in range(n_turns + 1):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        action()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - begun))
    return round(statistics.median(taken[1:]), 2)


def run_rank(rank: int, arguments: argparse.Namespace) -> None:
    """Time both ways; the first rank prints."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(arguments.port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    n_layers, n_tokens, width = arguments.layers, arguments.tokens, arguments.width
    own = torch.randn(n_layers, n_tokens, width, device="cuda", dtype=torch.bfloat16)
    own_there = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
    both = torch.empty(2, *own.shape, device="cuda", dtype=own.dtype)
    both_there = torch.empty(n_layers, n_tokens, 2 * width, dtype=own.dtype, pin_memory=True)

    def gather() -> None:
        dist.all_gather_into_tensor(both.view(2 * n_layers, n_tokens, width), own)

    def gather_and_copy() -> None:
        gather()
        if rank == 0:
            both_there.copy_(torch.cat([both[0], both[1]], dim=-1), non_blocking=True)

    found = {
        "each copies its own": median_ms(lambda: own_there.copy_(own, non_blocking=True), arguments.turns),
        "gathered, one copies all": median_ms(gather_and_copy, arguments.turns),
        "gathered only": median_ms(gather, arguments.turns),
    }
    if rank == 0:
        facts = {"device": torch.cuda.get_device_name(), **vars(arguments), "milliseconds": found}
        sys.stdout.write(json.dumps(facts) + "\n")
    dist.destroy_process_group()


def main() -> None:
    """Start both ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16384, help="of a step")
    parser.add_argument("--width", type=int, default=2048, help="values of a token's heads on each rank")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--port", type=int, default=29511)
    multiprocessing.spawn(run_rank, (parser.parse_args(),), nprocs=2)


if __name__ == "__main__":
    main()
