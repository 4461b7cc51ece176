"""Reads Hugging Face data sets, from the hub or a folder, as a stream. The only file that knows `datasets`.

No code of a data set is ever run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from easysteer_data.corpus.record import Record
from easysteer_data.errors import CorpusError, SettingsError

PREFIX = "hf:"

# One of these is in a folder that save_to_disk wrote, of one split or of several.
_SAVED = ("state.json", "dataset_dict.json")


def read_hub(path: str, split: str, config: str | None) -> Iterator[Record]:
    """Yield the rows of "hf:NAME" or "hf:FOLDER"; the source tells the 1-based row, as `hf:NAME[split]:row`.

    A folder holds data files (Parquet, JSON, CSV, text) or what `Dataset.save_to_disk` wrote.

    Raises:
        SettingsError: the package `datasets` is not installed, or the path is empty.
        CorpusError: the data set, its configuration or its split can't be read.
    """
    name = path.removeprefix(PREFIX)
    if not name:
        raise SettingsError(f"corpus.path is {path!r}; give a data set's name or folder behind {PREFIX}")
    datasets = _import_datasets()
    row = 0
    try:
        for row, columns in enumerate(_rows(datasets, name, split, config), start=1):
            yield Record(f"{path}[{split}]:{row}", columns)
    except CorpusError:
        raise
    # RuntimeError: the data set is a script, which would have to be run.
    except (datasets.exceptions.DatasetsError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise CorpusError(f"{path}[{split}]: can't be read after row {row}: {error}") from error


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise SettingsError(
            "corpus.path begins with hf: but the package datasets is not installed; "
            "pip install 'easysteer-data[hf]'"
        ) from error
    return datasets


def _rows(datasets: Any, name: str, split: str, config: str | None) -> Iterable[Mapping[str, Any]]:
    folder = Path(name).expanduser()
    if folder.is_dir():
        if any((folder / file).is_file() for file in _SAVED):
            return _saved_rows(datasets, folder, split)
        name = str(folder)
    elif name.startswith(("/", ".", "~")):
        raise CorpusError(
            f"corpus.path 'hf:{name}': there is no such folder (looked for {folder.absolute()})"
        )
    rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, config, split=split, streaming=True)
    return rows


def _saved_rows(datasets: Any, folder: Path, split: str) -> Iterable[Mapping[str, Any]]:
    """Return the rows that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    saved = datasets.load_from_disk(str(folder))
    if isinstance(saved, datasets.DatasetDict):
        splits = dict(saved)
    else:
        # A part of a split is named "train[:10%]"; one that was made by hand has no name and is any split.
        name = split if saved.split is None else str(saved.split).partition("[")[0]
        splits = {name: saved}
    if split not in splits:
        raise CorpusError(f"hf:{folder}: there is no split {split!r}; the splits are {', '.join(splits)}")
    rows: Iterable[Mapping[str, Any]] = splits[split]
    return rows
