"""Kills writers of a run at a URL at random moments, continues the run, and reports as JSON.

Run as a process of its own: every writer is a fork, so that one import of torch serves all of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from easysteer_data.shards.object_store import ObjectStore
from easysteer_data.shards.remote_writer import RemoteRunWriter, Spool
from tests.shards.made import make_run
from tests.shards.s3 import OPTIONS

MADE = make_run(tuple(range(1, 25)), n_shards=12)


def write_remotely(url: str, endpoint: str, spool: Path) -> list[int]:
    """Write what is missing of the run; returns the shards that were written now."""
    store = ObjectStore(url, {"endpoint": endpoint, **OPTIONS})
    written = []
    with RemoteRunWriter.open(store, MADE.header, Spool(spool, 2**20)) as writer:
        for shard in MADE.shards:
            if shard.number not in writer.done:
                writer.write(shard)
                written.append(shard.number)
        writer.close()
    return written


def main(url: str, endpoint: str, folder: Path, n_kills: int) -> None:
    chance = random.Random(0)
    n_hit, left = 0, n_kills
    result = folder / "written.json"
    # Kills are spread over what a whole run takes. It is timed in a fork: the client's threads survive none.
    begun = time.perf_counter()
    if (pid := os.fork()) == 0:
        write_remotely(f"{url}-timed", endpoint, folder / "spool")
        os._exit(0)
    os.waitpid(pid, 0)
    whole_s = time.perf_counter() - begun
    while True:
        pid = os.fork()
        if pid == 0:
            result.write_text(json.dumps(write_remotely(url, endpoint, folder / "spool")))
            os._exit(0)
        if left:
            left -= 1
            time.sleep(chance.uniform(0, 2 * whole_s / n_kills))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        ended = os.waitstatus_to_exitcode(status)
        n_hit += ended == -signal.SIGKILL
        if not left and ended == 0:
            break
        if ended > 0:
            raise RuntimeError("a writer failed")
    sys.stdout.write(json.dumps({"n_hit": n_hit, "written_last": json.loads(result.read_text())}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
