"""Kills a process that overwrites a run at every step, overwrites again, and reports as JSON.

Run as a process of its own: every overwriting process is a fork.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from easysteer_data.shards import RunWriter, StreamHeader, open_run
from tests.shards.made import files_of, make_run, write_run

OLD = make_run([3, 0, 2, 5], {"hidden_states": StreamHeader((0, 3), 6, "float16")}, n_shards=2)
# Another stream, layer, plan and fingerprint: nothing of the old run fits it.
NEW = make_run([2, 1], {"attention_heads": StreamHeader((1,), 4, "float16")}, n_shards=1, fingerprint="b2")
_CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def overwrite(out: Path) -> None:
    with RunWriter.open(out, NEW.header, on_existing="overwrite") as writer:
        for shard in NEW.shards:
            writer.write(shard)
        writer.close()


def overwrite_until_step(out: Path, step: int) -> bool:
    """Overwrite in a fork that dies just before its n-th change of a name; whether it did."""
    pid = os.fork()
    if pid == 0:
        n_steps = 0

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal n_steps
            if event in _CHANGES and str(args[0]).startswith(str(out)):
                n_steps += 1
                if n_steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        overwrite(out)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    write_run(folder / "old", OLD)
    write_run(folder / "new", NEW)
    whole, out = files_of(folder / "new"), folder / "out"
    crashes, step = [], 1
    shutil.copytree(folder / "old", out)
    while overwrite_until_step(out, step):
        finished = (out / "manifest.json").is_file()
        fingerprint = open_run(out).manifest.header.fingerprint if finished else None
        overwrite(out)
        differing = sorted({name for name, _ in set(files_of(out).items()) ^ set(whole.items())})
        crashes.append({"step": step, "finished": fingerprint, "differing": differing})
        shutil.rmtree(out)
        shutil.copytree(folder / "old", out)
        step += 1
    sys.stdout.write(json.dumps(crashes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
