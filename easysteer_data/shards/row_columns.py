"""What is known of every row beside its elements, checked as it is read. Knows whole columns, no file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from easysteer_data.errors import BadShardError
from easysteer_data.shards.labels import NO_CLASS, LabelHeader
from easysteer_data.shards.manifest import Manifest
from easysteer_data.types import SPLITS, RowIndex


def row_index(columns: Mapping[str, torch.Tensor], manifest: Manifest, source: Path | str) -> RowIndex:
    """The columns `prompt`, `position` and `token_id`, int32 [n_rows].

    Raises:
        BadShardError: rows lie in the shard of another prompt; `source` names the run.
    """
    prompt = columns["prompt"]
    ranges = torch.tensor([entry.prompts for entry in manifest.shards], dtype=torch.int32)
    n_rows = torch.tensor([entry.n_rows for entry in manifest.shards])
    bounds = ranges.repeat_interleave(n_rows, dim=0)
    if ((prompt < bounds[:, 0]) | (prompt >= bounds[:, 1])).any():
        raise BadShardError(f"{source}: a shard holds rows of prompts that belong to another shard")
    return RowIndex(prompt, columns["position"], columns["token_id"])


def class_labels(labels: torch.Tensor, header: LabelHeader, source: Path | str) -> torch.Tensor:
    """The same labels [n_rows]; BadShardError where one stands for no class of the run."""
    if header.kind == "classes" and ((labels < NO_CLASS) | (labels >= len(header.names))).any():
        raise BadShardError(f"{source}: a shard holds labels beyond the run's classes")
    return labels


def row_splits(table: pa.Table, n_rows: int, source: Path | str) -> NDArray[np.int8]:
    """Split of every row, as its place in SPLITS, int8 [n_rows], from the prompts' `split` and `n_rows`.

    Raises:
        BadShardError: there is no such split, or the prompts have other rows in all.
    """
    found = pc.index_in(table["split"], value_set=pa.array(SPLITS))
    if found.null_count:
        unknown = table["split"].filter(found.is_null())[0].as_py()
        raise BadShardError(f"{source}: the prompt table has the unknown split {unknown!r}")
    splits = found.to_numpy().astype(np.int8)
    counts = table["n_rows"].to_numpy()
    if counts.min() < 0 or counts.sum() != n_rows:
        raise BadShardError(f"{source}: the prompt table counts other rows than the shards hold")
    return np.repeat(splits, counts)
