"""The prompt table: what belongs to a prompt and not to a row, once a run. Knows Parquet, no activation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards.labels import LabelHeader
from easysteer_data.types import CapturedPrompt

# Prompts that are Python objects at once: as such they take several times what they do in the table.
_PART = 512

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("label", pa.string()),  # str(label)
        pa.field("label_value", pa.float64()),  # as stored with the rows: class index or number
        pa.field("group", pa.string()),
        pa.field("split", pa.string(), nullable=False),
        pa.field("fields", pa.string(), nullable=False),  # a JSON object
        pa.field("n_prompt_tokens", pa.int32(), nullable=False),
        pa.field("n_rows", pa.int32(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("generated_text", pa.string(), nullable=False),
        pa.field("generated_token_ids", pa.list_(pa.int32()), nullable=False),
    ]
)


def prompt_table_bytes(prompts: Sequence[CapturedPrompt], label: LabelHeader) -> bytes:
    """A Parquet file with one row a prompt; the same bytes for the same prompts and pyarrow version.

    Raises:
        RunError: a value has no place in the table; the message names the prompt.
    """
    parts = (prompts[start : start + _PART] for start in range(0, len(prompts), _PART))
    try:
        batches = [pa.RecordBatch.from_pylist(_rows(part, label), schema=SCHEMA) for part in parts]
        table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        first = prompts[0].prompt.source
        raise RunError(
            f"the prompt table of the prompts from {first} on can't be written: {error}"
        ) from error
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_prompt_table(
    path: Path | BinaryIO, prompts: tuple[int, int], columns: Sequence[str] | None
) -> pa.Table:
    """Read one shard's table, all columns or some.

    Raises:
        BadShardError: the file is no such table, or not of these prompts.
    """
    try:
        file = pq.ParquetFile(path)
        if not file.schema_arrow.equals(SCHEMA):
            raise BadShardError(f"{path}: is no prompt table, its columns are {file.schema_arrow.names}")
        table = file.read(columns=["index", *(columns or [])] if columns is not None else None)
        table.validate(full=True)  # else texts that are no UTF-8 come up later
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadShardError(f"{path}: can't be read ({error})") from error
    if not np.array_equal(table["index"].to_numpy(), np.arange(*prompts)):
        raise BadShardError(f"{path}: does not hold prompts {prompts[0]} to {prompts[1] - 1} in order")
    return table if columns is None else table.select(list(columns))


def _rows(prompts: Sequence[CapturedPrompt], label: LabelHeader) -> list[dict[str, object]]:
    if label.kind is None:
        return [_row(captured, math.nan) for captured in prompts]
    values = label.values(captured.prompt for captured in prompts)
    return [_row(captured, value) for captured, value in zip(prompts, values, strict=True)]


def _row(captured: CapturedPrompt, value: float) -> dict[str, object]:
    prompt = captured.prompt
    return {
        "index": prompt.index,
        "id": prompt.id,
        "text": prompt.text,
        "source": prompt.source,
        "label": None if prompt.label is None else str(prompt.label),
        "label_value": None if prompt.label is None or math.isnan(value) else float(value),
        "group": prompt.group,
        "split": prompt.split,
        # A value that JSON does not know, such as a date, is kept as its text.
        "fields": json.dumps(dict(prompt.fields), sort_keys=True, ensure_ascii=False, default=str),
        "n_prompt_tokens": len(prompt.token_ids),
        "n_rows": captured.n_rows,
        "token_ids": list(prompt.token_ids),
        "generated_text": captured.generated_text,
        "generated_token_ids": list(captured.generated_token_ids),
    }
