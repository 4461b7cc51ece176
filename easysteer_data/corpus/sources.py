"""Opens what `corpus.path` names: files, a Hugging Face data set or a built-in corpus. Knows no prompts.

A new format is a reader and a line in `_READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from easysteer_data.corpus.demo_facts import NAME, read_city_facts
from easysteer_data.corpus.demo_feelings import NAME as FEELINGS
from easysteer_data.corpus.demo_feelings import read_feelings
from easysteer_data.corpus.files import find_files, format_of
from easysteer_data.corpus.hub import PREFIX, read_hub
from easysteer_data.corpus.parquet import read_parquet
from easysteer_data.corpus.readers import KEY, read_csv, read_json, read_jsonl, read_txt
from easysteer_data.corpus.record import Record
from easysteer_data.corpus.settings import CorpusSettings, Format
from easysteer_data.errors import CorpusError
from easysteer_data.types import Label

_READERS: Mapping[Format, Callable[[Path], Iterator[Record]]] = MappingProxyType(
    {"txt": read_txt, "jsonl": read_jsonl, "json": read_json, "csv": read_csv, "parquet": read_parquet}
)

_BUILTIN: Mapping[str, Callable[[], Iterator[Record]]] = MappingProxyType(
    {NAME: read_city_facts, FEELINGS: read_feelings}
)


def read_records(settings: CorpusSettings) -> Iterator[Record]:
    """Yield the rows of a corpus as they are read; none is kept.

    Raises:
        SettingsError: a Hugging Face data set is asked for and the package `datasets` is missing.
        CorpusError: a file, data set or line can't be read; the message names it.
    """
    if settings.path.startswith(PREFIX):
        return read_hub(settings.path, settings.hf_split, settings.hf_config)
    if settings.path.startswith("builtin:"):
        if settings.path not in _BUILTIN:
            raise CorpusError(
                f"corpus.path {settings.path!r}: the built-in corpora are {', '.join(_BUILTIN)}"
            )
        return _BUILTIN[settings.path]()
    if settings.files is None:
        return _of_files(settings.path, settings.format)
    parts = {label: str(Path(settings.path, name)) for label, name in settings.files.items()}
    return chain.from_iterable(_with_key(label, path, settings.format) for label, path in parts.items())


def _of_files(path: str, asked: Literal["auto", Format]) -> Iterator[Record]:
    files = find_files(path)
    formats = [format_of(file) if asked == "auto" else asked for file in files]
    return chain.from_iterable(_READERS[name](file) for name, file in zip(formats, files, strict=True))


def _with_key(label: Label, path: str, asked: Literal["auto", Format]) -> Iterator[Record]:
    for record in _of_files(path, asked):
        if KEY in record.columns:
            raise record.fault(
                f"the row has a {KEY!r} of its own beside its file's label; take corpus.files out"
            )
        yield replace(record, columns={KEY: label, **record.columns})
