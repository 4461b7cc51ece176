"""The room of run folders: writing them crash-safely, reading them at memory speed. See README.md here."""

from __future__ import annotations

from easysteer_data.shards.checked_json import fingerprint_of
from easysteer_data.shards.header import RunHeader, StreamHeader
from easysteer_data.shards.inspect import inspect_run
from easysteer_data.shards.inspection import Fault, RunInspection, ShardInspection, layer_ranges
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.labels import LabelHeader
from easysteer_data.shards.manifest import Manifest, finished_run
from easysteer_data.shards.mirror import mirror_run
from easysteer_data.shards.opening import open_run, open_run_as
from easysteer_data.shards.plan import plan_shards
from easysteer_data.shards.reader import Run
from easysteer_data.shards.repair import repair_run
from easysteer_data.shards.statistics import LabelMeans, RowStatistics
from easysteer_data.shards.storage import StorageError
from easysteer_data.shards.webdataset_stages import (
    decode_safetensors,
    dequantise_packs,
    unpack_prompts,
    unpack_rows,
)
from easysteer_data.shards.writer import RunWriter

__all__ = [
    "Fault",
    "FileEntry",
    "LabelHeader",
    "LabelMeans",
    "Manifest",
    "RowStatistics",
    "Run",
    "RunHeader",
    "RunInspection",
    "RunWriter",
    "ShardEntry",
    "ShardInspection",
    "StorageError",
    "StreamHeader",
    "decode_safetensors",
    "dequantise_packs",
    "fingerprint_of",
    "finished_run",
    "inspect_run",
    "layer_ranges",
    "mirror_run",
    "open_run",
    "open_run_as",
    "plan_shards",
    "repair_run",
    "unpack_prompts",
    "unpack_rows",
]
