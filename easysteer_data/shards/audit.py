"""Reads every file of one shard to the last byte: presence, size, hash, and whether they agree.

Knows one shard; `tar_audit` knows the inside of a tar.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import layout
from easysteer_data.shards.checked_json import parse_json
from easysteer_data.shards.header import RunHeader
from easysteer_data.shards.index import LayerKey, ShardIndex, layer_keys, read_index
from easysteer_data.shards.inspection import Fault, ShardInspection
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.prompt_table import read_prompt_table
from easysteer_data.shards.statistics_file import read_statistics
from easysteer_data.shards.tar_audit import check_tar
from easysteer_data.types import SPLITS

T = TypeVar("T")

_GZIP = b"\x1f\x8b"


def inspect_shard(run: Path, header: RunHeader, entry: ShardEntry) -> ShardInspection:
    """Check all files of a committed shard; each bad one is named with the first thing that is wrong."""
    reasons = {file.name: reason for file in entry.files if (reason := file_fault(run, file)) is not None}
    number = entry.number

    def attempt(name: str, check: Callable[[], T]) -> T | None:
        """What a check of a file returns; None where the file is bad, or is so found."""
        if name in reasons:
            return None
        try:
            return check()
        except (RunError, OSError) as error:
            reasons[name] = str(error).removeprefix(f"{run / name}: ").removeprefix(f"{name}: ")
            return None

    prompts_name, statistics_name = layout.prompts_name(number), layout.statistics_name(number)
    table = attempt(prompts_name, lambda: _prompts(run / prompts_name, entry))
    keys = layer_keys(header.layers)
    attempt(statistics_name, lambda: check_statistics(run / statistics_name, keys, entry.n_rows))
    n_rows = None if table is None else table["n_rows"].to_numpy()
    index = attempt(layout.index_name(number), lambda: _index(run, header, entry)) if header.rows else None
    if index is not None:
        for key in layer_keys(header.tar_layers):
            tar = layout.tar_name(*key, number)
            attempt(tar, partial(check_tar, run / tar, header, index, key, n_rows))
    faults = tuple(Fault(file.name, reasons[file.name]) for file in entry.files if file.name in reasons)
    return ShardInspection(
        number, entry.prompts, entry, faults, _count(table, "split"), _count(table, "label")
    )


def file_fault(run: Path, file: FileEntry) -> str | None:
    """What is wrong with a file as bytes, None if nothing is."""
    path = run / file.name
    try:
        with path.open("rb") as data:
            if path.suffix == ".tar" and data.read(len(_GZIP)) == _GZIP:
                return "is a gzip file with the name of a tar"
            if (fault := file.fault(run)) is not None:
                return fault.removeprefix(f"{file.name}: ")
            data.seek(0)
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return None if digest == file.sha256 else "altered, its sha256 is not the manifest's"


def check_statistics(path: Path, keys: list[LayerKey], n_rows: int) -> None:
    """Check that a file holds finite statistics of so many rows of each layer; raises BadShardError."""
    for key in keys:
        splits = read_statistics(path, key).splits
        n_found = sum(split.n_rows for split in splits)
        if n_found != n_rows:
            raise BadShardError(
                f"the statistics of {layout.layer_folder(*key)} are of {n_found} rows, not {n_rows}"
            )
        if not all(math.isfinite(split.max_abs) and split.mean.isfinite().all() for split in splits):
            raise BadShardError(f"the statistics of {layout.layer_folder(*key)} are not finite")


def _index(run: Path, header: RunHeader, entry: ShardEntry) -> ShardIndex:
    name = layout.index_name(entry.number)
    return read_index(parse_json((run / name).read_bytes(), name), header, entry)


def _prompts(path: Path, entry: ShardEntry) -> pa.Table:
    table = read_prompt_table(path, entry.prompts, ["n_rows", "split", "label"])
    n_rows: NDArray[np.int32] = table["n_rows"].to_numpy()
    if n_rows.min() < 0 or n_rows.sum() != entry.n_rows:
        raise BadShardError(f"counts {n_rows.sum()} rows, the shard has {entry.n_rows}")
    unknown = sorted(set(table["split"].to_pylist()) - set(SPLITS))
    if unknown:
        raise BadShardError(f"has the unknown split {unknown[0]!r}")
    return table


def _count(table: pa.Table | None, column: str) -> dict[str, int]:
    return {} if table is None else dict(Counter(value or "" for value in table[column].to_pylist()))
