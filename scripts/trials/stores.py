"""Trials of runs that are written to an object store: it goes away for a while, two writers want one URL."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from easysteer_data.errors import RunError
from easysteer_data.shards.object_store import ObjectStore
from easysteer_data.shards.remote_writer import RemoteRunWriter, Spool
from scripts.trials.cluster import Found
from tests.shards.made import Made, files_of, make_run, write_run
from tests.shards.s3 import OPTIONS, proxy_to, s3_server

_SPOOL_BYTES = 2**20


def cut_off(out: Path, away_s: float) -> Found:
    """Answer nothing for a while in the middle of a run."""
    made = make_run(tuple(range(1, 25)), n_shards=12)
    with s3_server() as port, proxy_to(port) as (address, mishaps):
        store = ObjectStore("s3://bucket/run", {"endpoint": address, **OPTIONS})
        with RemoteRunWriter.open(store, made.header, Spool(out / "spool", _SPOOL_BYTES)) as writer:
            for shard in made.shards:
                if shard.number == 4:
                    mishaps.away = True
                    threading.Timer(away_s, lambda: setattr(mishaps, "away", False)).start()
                writer.write(shard)
            writer.close()
        return _found(store, made, out, mishaps.seen["away"])


def two_writers(out: Path) -> Found:
    """Open a URL that is being written."""
    made, said = make_run(), ""
    with s3_server() as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", **OPTIONS}
        store = ObjectStore("s3://bucket/run", options)
        with RemoteRunWriter.open(store, made.header, Spool(out / "spool", _SPOOL_BYTES)) as writer:
            writer.write(made.shards[0])
            try:
                RemoteRunWriter.open(store, made.header, Spool(out / "other", _SPOOL_BYTES))
            except RunError as error:
                said = str(error)
            for shard in made.shards[1:]:
                writer.write(shard)
            writer.close()
        return _found(store, made, out, int(bool(said)), said)


def _found(store: ObjectStore, made: Made, out: Path, n_mishaps: int, said: str = "") -> Found:
    write_run(out / "whole", made)
    expected = files_of(out / "whole")
    expected.pop("journal.jsonl")
    objects = {name: store.read(name) or b"" for name in store.sizes("")}
    journal = [json.loads(objects.pop(name)) for name in sorted(objects) if name.startswith("journal/")]
    numbers = {entry["shard"] for entry in journal}
    return Found(
        n_mishaps, len(made.shards) - len(numbers), len(journal) - len(numbers), objects == expected, said
    )
