"""Turns the rows of a corpus into prompts: text, label, group, split. Knows columns, not file formats."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType

from easysteer_data.corpus.demo_facts import NAME, read_city_facts
from easysteer_data.corpus.files import find_files, format_of
from easysteer_data.corpus.labels import settle_labels
from easysteer_data.corpus.readers import READERS
from easysteer_data.corpus.record import Record, missing_column
from easysteer_data.corpus.settings import CorpusSettings
from easysteer_data.corpus.splits import assign_splits, check_splits
from easysteer_data.corpus.template import Template
from easysteer_data.errors import CorpusError
from easysteer_data.types import SPLITS, Prompt, Split

_BUILTIN: Mapping[str, Callable[[], Iterator[Record]]] = MappingProxyType({NAME: read_city_facts})


def read_corpus(settings: CorpusSettings) -> list[Prompt]:
    """Read all prompts of a corpus, with labels of one type and a split each.

    Texts are exact: nothing is stripped or normalised. Indices run from 0 without gaps; the id of a
    prompt without an id column is its row's number, which a skipped row does not change.

    Raises:
        CorpusError: a file, line, column or prompt can't be used; the message names it.
    """
    prompts: list[Prompt] = []
    untyped: set[int] = set()
    columns: dict[str, None] = {}  # a set that keeps the order, for the message
    for index, (row, text, record) in enumerate(islice(_texts(settings), settings.limit)):
        prompts.append(_prompt(settings, index, row, text, record))
        columns.update(dict.fromkeys(record.columns))
        if not record.typed:
            untyped.add(index)
    if not prompts:
        raise CorpusError(f"{settings.path}: the corpus is empty: no prompt in it")
    # A label or field may be absent from some rows; a column that no row has is a wrong name.
    for column in (settings.label_column, settings.group_column, *settings.fields):
        if column is not None and column not in columns:
            raise missing_column(settings.path, column, columns)
    _check_ids(prompts)
    prompts = settle_labels(prompts, untyped)
    if settings.split_column is None:
        return assign_splits(prompts, settings.splits)
    check_splits(prompts)
    return prompts


def _records(settings: CorpusSettings) -> Iterator[Record]:
    if settings.path.startswith("builtin:"):
        if settings.path not in _BUILTIN:
            raise CorpusError(
                f"corpus.path {settings.path!r}: the built-in corpora are {', '.join(_BUILTIN)}"
            )
        return _BUILTIN[settings.path]()
    files = find_files(settings.path)
    formats = [format_of(file) if settings.format == "auto" else settings.format for file in files]
    return chain.from_iterable(READERS[name](file) for name, file in zip(formats, files, strict=True))


def _texts(settings: CorpusSettings) -> Iterator[tuple[int, str, Record]]:
    """Yield (row number, prompt text, record) of the rows that are kept."""
    template = None if settings.template is None else Template.parse(settings.template)
    for row, record in enumerate(_records(settings)):
        text = record.text(settings.text_column) if template is None else template.render(record.name)
        if text and not text.isspace():
            yield row, text, record
        elif settings.empty_prompts == "fail":
            raise CorpusError(
                f"{record.source}: the prompt is empty ({text!r}); "
                "set corpus.empty_prompts=skip to leave such rows out"
            )


def _prompt(settings: CorpusSettings, index: int, row: int, text: str, record: Record) -> Prompt:
    return Prompt(
        index=index,
        id=str(row) if settings.id_column is None else _id(record, settings.id_column),
        text=text,
        source=record.source,
        label=record.label(settings.label_column),
        group=_group(record, settings.group_column, text),
        split="train" if settings.split_column is None else _split(record, settings.split_column),
        fields={column: record.columns.get(column) for column in settings.fields},
    )


def _id(record: Record, column: str) -> str:
    name = record.name(column)
    if not name:
        raise CorpusError(f"{record.source}: the id in column {column!r} is empty")
    return name


def _group(record: Record, column: str | None, text: str) -> str:
    if column is None or record.given(column) is None:
        return text
    return record.name(column)


def _split(record: Record, column: str) -> Split:
    name = record.name(column)
    if name not in SPLITS:
        nearest = difflib.get_close_matches(name, SPLITS, n=1, cutoff=0.3)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise CorpusError(f"{record.source}: the split {name!r} is not one of {', '.join(SPLITS)}{hint}")
    return name


def _check_ids(prompts: Sequence[Prompt]) -> None:
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        earlier = first.setdefault(prompt.id, prompt)
        if earlier is not prompt:
            raise CorpusError(
                f"{prompt.source}: the id {prompt.id!r} is taken by {earlier.source}; ids are unique"
            )
