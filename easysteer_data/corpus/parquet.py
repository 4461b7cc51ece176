"""Reads Parquet, a row group at a time. Knows no columns."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from easysteer_data.corpus.record import Record
from easysteer_data.errors import CorpusError

# Few enough that wide rows stay small in memory, enough that the calls cost nothing.
_BATCH = 1024


def read_parquet(file: Path) -> Iterator[Record]:
    """Yield the rows; the source tells the 1-based row, as `file:row`.

    Raises:
        CorpusError: the file is no Parquet, is damaged, or holds text that is not UTF-8.
    """
    row = 0
    try:
        with _open(file) as handle, pq.ParquetFile(handle) as table:
            for batch in table.iter_batches(batch_size=_BATCH):
                for columns in batch.to_pylist():
                    row += 1
                    yield Record(f"{file}:{row}", columns)
    except (pa.ArrowException, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{file}: can't be read after row {row}: {error}") from error


@contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    """Open a file for random access; a gzip file is unpacked to disk, since Parquet is read from its end."""
    if file.suffix.lower() != ".gz":
        with file.open("rb") as handle:
            yield handle
        return
    with tempfile.TemporaryFile() as plain:
        with gzip.open(file, "rb") as packed:
            shutil.copyfileobj(packed, plain)
        plain.seek(0)
        yield plain
