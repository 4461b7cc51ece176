"""Resolves which rows of a run are served into row numbers. Knows labels and prompts, no row's elements."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from easysteer_data.data_options import RowFilter
from easysteer_data.errors import BadShardError, RunError, SettingsError
from easysteer_data.serving.sampler import RowNumbers
from easysteer_data.shards import Manifest
from easysteer_data.types import SPLITS, RowIndex, Split

Mask = npt.NDArray[np.bool_]

# Columns of the prompt table that a filter may name beside the corpus' own fields.
_COLUMNS = ("id", "group", "label")


class LabelledRun(Protocol):
    """What is known of a run's rows and prompts, wherever the run lies; Run says what each is."""

    manifest: Manifest
    n_rows: int

    @property
    def path(self) -> Path | str: ...  # noqa: D102
    @property
    def index(self) -> RowIndex: ...  # noqa: D102
    @property
    def labels(self) -> torch.Tensor | None: ...  # noqa: D102
    def prompts(self, columns: Sequence[str] | None = None) -> pa.Table: ...  # noqa: D102
    def row_splits(self) -> npt.NDArray[np.int8]: ...  # noqa: D102


class ChosenRows:
    """Row numbers of a run by split, each resolved once.

    Args:
        run: the run.
        rows: which rows are served.
        labelled_only: leave out rows without a label.
        seed: of the draw of `rows.limit`.
    """

    def __init__(self, run: LabelledRun, rows: RowFilter, labelled_only: bool = False, seed: int = 0) -> None:
        self._labelled = run
        self._filter = rows
        self._labelled_only = labelled_only
        self._seed = seed
        self._numbers: dict[Split | None, torch.Tensor] = {}

    def __getitem__(self, split: Split | None) -> torch.Tensor:
        """Row numbers of a split, or of all splits, int64 [n], ascending.

        Raises:
            RunError: there are none; the message tells how many each split has.
        """
        numbers = self._chosen(split)
        if len(numbers) == 0:
            counts = ", ".join(f"{name} {len(self._chosen(name))}" for name in SPLITS)
            kind = "rows with a label" if self._labelled_only else "rows"
            passed = "" if self._filter == RowFilter() else " pass the filter"
            raise RunError(
                f"{self._labelled.path}: no {kind}{passed} in split {split or 'all'!r}; rows: {counts}"
            )
        return numbers

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values that determine which rows training is served; `n_rows` is an epoch's."""
        return {
            "run": self._labelled.manifest.header.fingerprint,
            "seed": self._seed,
            "n_rows": len(self["train"]),
            "crc32 of the row numbers": zlib.crc32(self["train"].numpy().data),
        }

    def _chosen(self, split: Split | None) -> torch.Tensor:
        if split not in self._numbers:
            rows = choose_rows(self._labelled, split, self._filter, self._labelled_only, self._seed)
            self._numbers[split] = torch.from_numpy(rows)
        return self._numbers[split]


def choose_rows(
    run: LabelledRun, split: Split | None, rows: RowFilter, labelled_only: bool = False, seed: int = 0
) -> RowNumbers:
    """Row numbers of a split, or of all splits, that a filter lets through, int64 [n], ascending.

    Args:
        run: the run.
        split: None = all of them.
        rows: the filter.
        labelled_only: leave out rows without a label.
        seed: of the draw that `rows.limit` makes.

    Raises:
        SettingsError: the filter names a field that no prompt has.
    """
    mask = np.ones(run.n_rows, dtype=np.bool_)
    if split is not None:
        mask &= run.row_splits() == SPLITS.index(split)
    if labelled_only and (labels := run.labels) is not None:
        mask &= (labels.isnan().logical_not() if labels.is_floating_point() else labels >= 0).numpy()
    if rows.last:
        mask &= _last_of_prompts(run)
    if rows.positions is not None:
        mask &= _at_positions(run, rows.positions)
    if rows.token_ids is not None:
        mask &= np.isin(run.index.token_id.numpy(), rows.token_ids)
    if rows.fields:
        mask &= _of_prompts(run, rows)
    numbers = np.flatnonzero(mask)
    if rows.limit is None or rows.limit >= len(numbers):
        return numbers
    return np.sort(np.random.default_rng(seed).permutation(numbers)[: rows.limit])


def _last_of_prompts(run: LabelledRun) -> Mask:
    prompt = run.index.prompt.numpy()
    return np.append(prompt[1:] != prompt[:-1], [True] * (len(prompt) > 0))


def _at_positions(run: LabelledRun, positions: Sequence[int]) -> Mask:
    position = run.index.position.numpy()
    mask: Mask = np.isin(position, [wanted for wanted in positions if wanted >= 0])
    if any(wanted < 0 for wanted in positions):
        n_tokens = run.prompts(["n_prompt_tokens"])["n_prompt_tokens"].to_numpy()
        # A completion's positions count on from the prompt's end and are never negative from there.
        mask |= np.isin(position - n_tokens[run.index.prompt.numpy()], [p for p in positions if p < 0])
    return mask


def _of_prompts(run: LabelledRun, rows: RowFilter) -> Mask:
    """Rows whose prompt has one of the wanted values in every field."""
    table = run.prompts([*_COLUMNS, "fields"]).to_pydict()
    fields = [_parsed(run, text) for text in table["fields"]]
    known = {name for one in fields for name in one} | set(_COLUMNS)
    if unknown := sorted(set(rows.fields) - known):
        raise SettingsError(
            f"rows.fields: no prompt of {run.path} has {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )
    wanted = np.ones(len(fields), dtype=np.bool_)
    for name, values in rows.fields.items():
        found = table[name] if name in _COLUMNS else [one.get(name) for one in fields]
        wanted &= [value in values for value in found]
    mask: Mask = wanted[run.index.prompt.numpy()]
    return mask


def _parsed(run: LabelledRun, text: str) -> dict[str, object]:
    """A prompt's fields; BadShardError if they are no JSON object."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadShardError(f"{run.path}: the prompt table has fields that are no JSON ({error})") from error
    if not isinstance(fields, dict):
        raise BadShardError(f"{run.path}: the prompt table has fields that are no JSON object")
    return fields
