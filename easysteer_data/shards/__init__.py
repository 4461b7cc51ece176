"""The room of run folders: writing them crash-safely, reading them at memory speed. See README.md here."""

from __future__ import annotations

from easysteer_data.shards.checked_json import fingerprint_of
from easysteer_data.shards.header import RunHeader, StreamHeader
from easysteer_data.shards.journal import FileEntry, ShardEntry
from easysteer_data.shards.labels import LabelHeader
from easysteer_data.shards.manifest import Manifest, finished_run
from easysteer_data.shards.plan import plan_shards
from easysteer_data.shards.reader import Run, open_run
from easysteer_data.shards.statistics import RowStatistics
from easysteer_data.shards.webdataset_stages import decode_safetensors, unpack_rows
from easysteer_data.shards.writer import RunWriter

__all__ = [
    "FileEntry",
    "LabelHeader",
    "Manifest",
    "RowStatistics",
    "Run",
    "RunHeader",
    "RunWriter",
    "ShardEntry",
    "StreamHeader",
    "decode_safetensors",
    "fingerprint_of",
    "finished_run",
    "open_run",
    "plan_shards",
    "unpack_rows",
]
