"""Turns the rows of a corpus into prompts: ids, labels, groups, splits. Knows no formats of files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from easysteer_data.corpus.labels import settle_labels
from easysteer_data.corpus.letters import balance_letters
from easysteer_data.corpus.makers import Draft, maker_of
from easysteer_data.corpus.record import Record, missing_column
from easysteer_data.corpus.settings import CorpusSettings
from easysteer_data.corpus.sources import read_records
from easysteer_data.corpus.splits import assign_splits, check_splits, join_groups
from easysteer_data.errors import CorpusError
from easysteer_data.types import SPLITS, Prompt, Split


def read_corpus(settings: CorpusSettings) -> list[Prompt]:
    """Read all prompts of a corpus, with labels of one type and a split each.

    Texts are exact: nothing is stripped or normalised. Indices run from 0 without gaps; the id of a
    prompt without an id column is its row's number, which a row that is left out does not change. The text
    of chats and of given tokens is their JSON, until they are tokenised.

    Raises:
        SettingsError: a Hugging Face data set is asked for and the package `datasets` is missing.
        CorpusError: a file, line, column or prompt can't be used; the message names it.
    """
    prompts: list[Prompt] = []
    untyped: set[int] = set()
    columns: dict[str, None] = {}  # a set that keeps the order, for the message
    for row, drafts, record in _kept(settings):
        columns.update(dict.fromkeys(record.columns))
        for draft in drafts:
            if settings.label_column is not None and not record.typed:
                untyped.add(len(prompts))
            prompts.append(_prompt(settings, len(prompts), row, draft, record))
    if not prompts:
        raise CorpusError(f"{settings.path}: the corpus is empty: no prompt in it")
    # A label or field may be absent from some rows; a column that no row has is a wrong name.
    for column in (settings.label_column, settings.group_column, *settings.fields):
        if column is not None and column not in columns:
            raise missing_column(settings.path, column, columns)
    _check_ids(prompts)
    return _with_splits(settings, settle_labels(prompts, untyped))


def _with_splits(settings: CorpusSettings, prompts: list[Prompt]) -> list[Prompt]:
    if settings.shape == "pair" and settings.group_column is None:
        prompts = join_groups(prompts)
    if settings.balance_letters:
        prompts = balance_letters(prompts, settings.splits.seed)
    if settings.test_path is not None:
        return _with_test_file(settings, prompts)
    if settings.split_column is None:
        return assign_splits(prompts, settings.splits)
    check_splits(prompts)
    return prompts


def _with_test_file(settings: CorpusSettings, prompts: list[Prompt]) -> list[Prompt]:
    """The test file's prompts in the test split, which they were given, the others in the other two."""
    own = [prompt for prompt in prompts if prompt.split != "test"]
    dealt = assign_splits(own, settings.splits.without_test())
    prompts = [*dealt, *(prompt for prompt in prompts if prompt.split == "test")]
    check_splits(prompts)
    return sorted(prompts, key=lambda prompt: prompt.index)


def _kept(settings: CorpusSettings) -> Iterator[tuple[int, list[Draft], Record]]:
    """Yield (row number, prompts to be, record) of the rows that are kept; rows count on over the files."""
    rows, seen = count(), set[tuple[object, ...]]()
    yield from islice(_kept_of(settings, rows, seen), settings.limit)
    if settings.test_path is not None:
        test = replace(settings, path=settings.test_path, test_path=None)
        for row, drafts, record in islice(_kept_of(test, rows, seen), settings.limit):
            yield row, drafts, replace(record, split="test")


def _kept_of(
    settings: CorpusSettings, rows: Iterator[int], seen: set[tuple[object, ...]]
) -> Iterator[tuple[int, list[Draft], Record]]:
    make = maker_of(settings)
    for record in read_records(settings):
        row, drafts = next(rows), make(record)
        blank = next((draft for draft in drafts if draft.blank), None)
        if blank is not None:
            if settings.empty_prompts == "fail":
                raise record.fault(
                    f"the prompt is empty ({blank.text!r}); "
                    "set corpus.empty_prompts=skip to leave such rows out"
                )
            continue
        if settings.duplicates == "first":
            content = (*(draft.text for draft in drafts), record.label(settings.label_column))
            if content in seen:
                continue
            seen.add(content)
        yield row, drafts, record


def _prompt(settings: CorpusSettings, index: int, row: int, draft: Draft, record: Record) -> Prompt:
    name = str(row) if settings.id_column is None else _id(record, settings.id_column)
    return Prompt(
        index=index,
        id=name if draft.side is None else f"{name}-{draft.side}",
        text=draft.text,
        source=record.source,
        label=draft.label if settings.label_column is None else record.label(settings.label_column),
        group=_group(record, settings.group_column, name if draft.group is None else draft.group),
        split=record.split if settings.split_column is None else _split(record, settings.split_column),
        fields={column: record.columns.get(column) for column in settings.fields} | dict(draft.fields),
        token_ids=draft.token_ids,
        messages=draft.messages,
    )


def _id(record: Record, column: str) -> str:
    name = record.name(column)
    if not name:
        raise CorpusError(f"{record.source}: the id in column {column!r} is empty")
    return name


def _group(record: Record, column: str | None, own: str) -> str:
    if column is None or record.given(column) is None:
        return own
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
