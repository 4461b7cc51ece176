"""Kills writers of a run at every step and at random moments, continues the run, and reports as JSON.

Run as a process of its own: every writer is a fork, so that one import of torch serves hundreds of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from easysteer_data.shards import RunWriter, StreamHeader
from tests.shards.made import files_of, make_run, write_run

MADE = make_run([3, 0, 2, 5], {"hidden_states": StreamHeader((0, 3), 6, "float16")}, n_shards=2)


def in_fork(work: Callable[[], object], result: Path) -> bool:
    """Run `work` in a forked process, its result as JSON in a file; False if a signal ended it."""
    pid = os.fork()
    if pid == 0:
        result.write_text(json.dumps(work()))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


def write_until_step(out: Path, step: int) -> None:
    """Write the run, and die just before the n-th change of a name or opening of a file in its folder."""
    n_steps = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal n_steps
        changes = event in ("open", "os.rename", "os.mkdir", "os.remove")
        if changes and str(args[0]).startswith(str(out)):
            n_steps += 1
            if n_steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    write_run(out, MADE)


def continue_run(out: Path) -> dict[str, object]:
    """Continue a killed run; which shards were done, whether they stayed untouched, and the final files."""
    files = [*out.rglob("*.tar")]
    before = {path: path.stat().st_ino for path in files}
    with RunWriter.open(out, MADE.header) as writer:
        done = sorted(writer.done)
    names = [entry for entry in before if int(entry.stem[-6:]) in done]
    write_run(out, MADE)
    return {
        "done": done,
        "untouched": all(before[path] == path.stat().st_ino for path in names),
        "finished_tars_of_done": len(names),
        "files": {name: data.hex() for name, data in files_of(out).items()},
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    result = folder / "result.json"
    write_run(folder / "first", MADE)  # imports what is imported late, so that forks need not
    started = time.monotonic()
    write_run(folder / "whole", MADE)
    duration = time.monotonic() - started
    whole = {name: data.hex() for name, data in files_of(folder / "whole").items()}
    crashes, step, alive = [], 0, False
    while not alive:
        step += 1
        out = folder / f"step-{step}"
        alive = in_fork(lambda: write_until_step(out, step), result)  # noqa: B023 - called at once
        crashes.append(outcome(out, result, whole))
    chance = random.Random(0)
    for attempt in range(20):
        out = folder / f"time-{attempt}"
        pid = os.fork()
        if pid == 0:
            write_run(out, MADE)
            os._exit(0)
        time.sleep(chance.uniform(0, duration))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        crashes.append(outcome(out, result, whole))
    sys.stdout.write(json.dumps(crashes))


def outcome(out: Path, result: Path, whole: dict[str, str]) -> dict[str, object]:
    if not in_fork(lambda: continue_run(out), result):
        raise RuntimeError(f"{out} could not be continued")
    report: dict[str, Any] = json.loads(result.read_text())
    files = report.pop("files")
    return {"out": out.name, **report, "differing": sorted(set(files.items()) ^ set(whole.items()))}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
