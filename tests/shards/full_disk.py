"""Fills a small file system while a run is written, makes it larger, continues the run, and reports as JSON.

Run under `unshare --map-root-user --mount`, where a process may mount without being root. Where that is not
allowed, run as it is: then a limit on the size of files stands in for the full disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards import RunWriter
from tests.shards.made import disk_with_room_for, files_of, make_run, write_run

MADE = make_run()


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def main(folder: Path) -> None:
    whole, out, disk = folder / "whole", folder / "disk" / "out", folder / "disk"
    write_run(whole, MADE)
    disk.mkdir()
    # Room for the first shard and a part of the second.
    mounted = mount(disk, "size=96k")
    failure, done = "", []
    with RunWriter.open(out, MADE.header) as writer, ExitStack() as stack:
        try:
            for shard in MADE.shards:
                if not mounted and shard.number == 1:
                    stack.enter_context(disk_with_room_for(3000))
                writer.write(shard)
        except RunError as error:
            failure = str(error)
        done = sorted(writer.done)
    left = files_of(out)
    if mounted:
        mount(disk, "remount,size=1m")
    write_run(out, MADE)
    report = {
        "mounted": mounted,
        "failure": failure,
        "done": done,
        "partial": [name for name in left if name.endswith(".partial")],
        "same": files_of(out) == files_of(whole),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
