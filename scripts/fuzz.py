"""Damages the files of a run at random and reads them: every fault must end in an error of ours; prints JSON.

A case is a pure function of its number. Children run the cases, so that a crash or a hang is seen and named:

    python -m scripts.fuzz [--seconds 600] [--first 0]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import webdataset as wds

from easysteer_data.errors import EasySteerDataError
from easysteer_data.shards import Run, decode_safetensors, inspect_run, open_run, unpack_rows
from tests.shards.made import make_run, write_run

N_ROUND = 100  # cases of one child process
ROUND_SECONDS = 120.0  # a round that takes longer hangs

TARGETS = (
    "manifest.json",
    "run.json",
    "journal.jsonl",
    "index/shard-000001.json",
    "hidden_states/layer-003/shard-000001.tar",
    "prompts/shard-000001.parquet",
    "statistics/shard-000001.safetensors",
    "statistics.safetensors",
)
NUMBERS = (b"0", b"-1", b"1", b"255", b"2147483648", b"9223372036854775807", b"1e99", b"null", b'"7"', b"[]")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One to four random changes of some bytes."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.choice((1, 1, 4, 64, 512, len(data))))
        kind = chance.choice(("flip", "set", "cut", "double", "noise", "number"))
        if kind == "number":
            found = [match.span() for match in re.finditer(rb"\d+", data)] or [(start, stop)]
            start, stop = chance.choice(found)
        middle = {
            "flip": bytes(byte ^ 1 << chance.randrange(8) for byte in data[start:stop][:8])
            + data[start + 8 : stop],
            "set": chance.choice((b"\0", b"\xff")) * (stop - start),
            "cut": b"",
            "double": data[start:stop] * 2,
            "noise": chance.randbytes(chance.choice((1, 8, 600))),
            "number": chance.choice(NUMBERS),
        }[kind]
        data = data[:start] + middle + data[stop:]
    return data


def vouch_for(folder: Path, name: str) -> None:
    """Enter a file's size and hash in the manifest, as whoever forges a run would."""
    data = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for file in [*(file for shard in manifest["shards"] for file in shard["files"]), manifest["statistics"]]:
        if file["name"] == name:
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["totals"]["bytes"] = sum(f["bytes"] for shard in manifest["shards"] for f in shard["files"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def read_all(run: Run) -> None:
    """Every row, label, prompt and figure of a run."""
    for stream, layer_ids in run.streams.items():
        run.gather(stream, layer_ids, torch.arange(run.n_rows))
        for layer_id in layer_ids:
            run.statistics(stream, layer_id, "train")
    run.index, run.labels, run.row_splits(), run.prompts()


def read_webdataset(folder: Path) -> None:
    """Every row of a layer through the webdataset package and our stages."""
    tars = [str(path) for path in sorted((folder / "hidden_states/layer-003").glob("*.tar"))]
    for _ in wds.WebDataset(tars, shardshuffle=False).decode(decode_safetensors).compose(unpack_rows):
        pass


@contextmanager
def altered(folder: Path, name: str, data: bytes, vouched: bool) -> Iterator[None]:
    """A run with another file in it, and all as it was afterwards."""
    kept = {file: (folder / file).read_bytes() for file in (name, "manifest.json")}
    try:
        (folder / name).write_bytes(data)
        if vouched:
            vouch_for(folder, name)
        yield
    finally:
        for file, before in kept.items():
            (folder / file).write_bytes(before)


def case(folder: Path, number: int) -> str:
    """Run one case; `read` if nothing was found wrong, `refused` if an error of ours told what is.

    Raises:
        Exception: anything else that reading raised.
    """
    chance = random.Random(number)  # noqa: S311 - no secret
    name = chance.choice(TARGETS)
    data = damaged((folder / name).read_bytes(), chance)
    vouched = name not in ("manifest.json", "run.json", "journal.jsonl") and chance.random() < 0.8
    with altered(folder, name, data, vouched):
        outcome = "read"
        for reading in (lambda: read_all(open_run(folder)), lambda: inspect_run(folder)):
            try:
                reading()
            except EasySteerDataError:
                outcome = "refused"
        if name.endswith(".tar"):
            try:
                read_webdataset(folder)
            except Exception:
                outcome = "refused"
    return f"{name.split('/')[0]}: {outcome}"


def run_round(folder: str, first: int, results: multiprocessing.Queue[object]) -> None:
    """Cases `first` and on in this process; puts the counts, or the number and error of a bad one."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for number in range(first, first + N_ROUND):
        try:
            counts[case(Path(folder), number)] += 1
        except BaseException as error:
            results.put(f"case {number}: {type(error).__name__}: {error}")
            return
    results.put(dict(counts))


def main() -> None:
    """Fuzz for a time; exit code 1, and the case, where reading crashed, hung or raised an error not ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    counts: Counter[str] = Counter()
    stop, first, found = time.monotonic() + arguments.seconds, arguments.first, ""
    while time.monotonic() < stop and not found:
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder), make_run())
            results: multiprocessing.Queue[object] = context.Queue()
            child = context.Process(target=run_round, args=(folder, first, results))
            child.start()
            child.join(ROUND_SECONDS)
            if child.is_alive():
                child.kill()
                found = f"cases {first} to {first + N_ROUND - 1}: no end after {ROUND_SECONDS} s"
            elif child.exitcode:
                found = f"cases {first} to {first + N_ROUND - 1}: exit code {child.exitcode}"
            else:
                answer = results.get()
                if isinstance(answer, str):
                    found = answer
                else:
                    counts.update(answer)  # type: ignore[arg-type]
            shutil.rmtree(folder, ignore_errors=True)
        first += N_ROUND
    sys.stdout.write(
        json.dumps({"cases": counts.total(), "found": found, **dict(sorted(counts.items()))}) + "\n"
    )
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
