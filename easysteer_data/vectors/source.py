"""The rows of a run's two classes, layer by layer, split by split. The only file here that reads a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import cast

import torch

from easysteer_data.data_options import RowFilter, plain_options
from easysteer_data.errors import BadShardError, RunError
from easysteer_data.serving import ServedLayers, choose_rows
from easysteer_data.shards import RowStatistics, Run
from easysteer_data.types import SPLITS, Split, Stream
from easysteer_data.vectors.contrast import Contrast, LabelledRows

# Rows in float64, what an estimator makes of them, and the rows as stored.
_COPIES_IN_MEMORY = 3


class ContrastSource:
    """Labelled rows of a run, as estimators learn from them and are measured on them.

    The run's labels must be classes, and the chosen rows of two of them: the one that comes later in
    `label.names` is the positive class. Rows without a label are left out.

    Attributes:
        run: the run.
        stream: which of its streams.
        layer_ids: decoder blocks, ascending.
        confound: the field that `LabelledRows.confound` numbers, None where no prompt has it.

    Args:
        run: the run.
        stream: which of its streams.
        layers: decoder blocks, one as an int, or None for all.
        rows: which rows; of more than two classes, `RowFilter(fields={"label": [...]})` picks two.
        confound: a field of the prompts, such as "letter".
        seed: of the draw of `rows.limit`.

    Raises:
        RunError: the run's labels are no classes, or there are not two.
        SettingsError: a layer or a field was asked for that the run does not hold.
    """

    def __init__(
        self,
        run: Run,
        stream: Stream = "hidden_states",
        layers: int | Sequence[int] | None = None,
        rows: RowFilter | None = None,
        confound: str | None = None,
        seed: int = 0,
    ) -> None:
        self.run = run
        self.stream: Stream = stream
        self.layer_ids = tuple(sorted(set(ServedLayers(run, stream, layers).layer_ids)))
        self._filter = rows or RowFilter()
        self._seed = seed
        self._classes = self._two_classes()
        self.confound = confound if confound is not None and any(self._has_confound(confound)) else None

    @property
    def negative(self) -> str:
        """Name of the negative class."""
        return self.run.manifest.header.label.names[self._classes[0]]

    @property
    def positive(self) -> str:
        """Name of the positive class."""
        return self.run.manifest.header.label.names[self._classes[1]]

    @property
    def has_rows(self) -> bool:
        """Whether the run stores rows; else only class means can be had of it."""
        return self.run.manifest.header.rows

    @property
    def selection(self) -> dict[str, object]:
        """Which rows, as plain values."""
        return {
            "split": "train",
            "rows": plain_options(self._filter),
            "seed": self._seed,
            "capture": self.run.manifest.header.settings.get("select"),
        }

    def n_rows(self, split: Split) -> int:
        """Rows of a split."""
        if self.has_rows:
            return len(self._numbers[split])
        label_means = self._statistics(self.layer_ids[0], split).by_label
        return 0 if label_means is None else int(label_means.n_rows.sum())

    def chunks(self, max_bytes: int) -> Iterator[tuple[int, ...]]:
        """The layers in runs of neighbours whose rows can be worked on within a size; one layer at least."""
        n_rows = sum(self.n_rows(split) for split in SPLITS) if self.has_rows else 1
        width = self.run.manifest.header.streams[self.stream].width
        per_layer = _COPIES_IN_MEMORY * max(n_rows, 1) * width * torch.float64.itemsize
        n_layers = max(max_bytes // per_layer, 1)
        for start in range(0, len(self.layer_ids), n_layers):
            yield self.layer_ids[start : start + n_layers]

    def contrast(self, layer_ids: Sequence[int]) -> Contrast:
        """The train split's classes, from the run's statistics where they are of exactly these rows.

        Raises:
            RunError: the train split lacks a class.
        """
        load = partial(self.rows, "train", layer_ids)
        if self._filter == RowFilter():
            found = [self._statistics(layer_id, "train") for layer_id in layer_ids]
            labels = [statistics.by_label for statistics in found if statistics.by_label is not None]
            if labels:
                self._check_counts([int(labels[0].n_rows[index]) for index in self._classes])
                means = torch.stack([label.mean[list(self._classes)] for label in labels], dim=1)
                norms = torch.tensor([statistics.mean_norm for statistics in found], dtype=torch.float64)
                return Contrast(means, norms, load)
        rows = load()
        self._check_counts([int((~rows.positive).sum()), int(rows.positive.sum())])
        return Contrast(rows.class_means(), rows.x.norm(dim=-1).mean(dim=0), lambda: rows)

    def rows(self, split: Split, layer_ids: Sequence[int]) -> LabelledRows:
        """The rows of a split, in the run's order, none where it has none.

        Raises:
            RunError: the run keeps statistics only.
        """
        numbers = self._numbers[split]
        prompt = self.run.index.prompt[numbers].long()
        positive = cast("torch.Tensor", self.run.labels)[numbers] == self._classes[1]
        x = self.run.gather(self.stream, layer_ids, numbers).double()
        return LabelledRows(x, positive, self._groups[prompt], self._confounds[prompt])

    def _statistics(self, layer_id: int, split: Split | None) -> RowStatistics:
        return self.run.statistics(self.stream, layer_id, split)

    @cached_property
    def _numbers(self) -> dict[Split, torch.Tensor]:
        """Row numbers of each split's labelled rows that the filter lets through, int64 [n]."""
        return {
            split: torch.from_numpy(
                choose_rows(self.run, split, self._filter, labelled_only=True, seed=self._seed)
            )
            for split in SPLITS
        }

    def _two_classes(self) -> tuple[int, int]:
        """Negative and positive class, as places among the run's class names."""
        label = self.run.manifest.header.label
        if label.kind != "classes":
            raise RunError(
                f"{self.run.path} has {label}, but a direction lies between two classes; capture a corpus "
                "whose labels are two classes"
            )
        if not self.has_rows:
            means = self._statistics(self.layer_ids[0], None).by_label
            found = [] if means is None else means.n_rows.nonzero().flatten().tolist()
        else:
            labels = cast("torch.Tensor", self.run.labels)
            found = sorted(set(labels[torch.cat(list(self._numbers.values()))].tolist()))
        if len(found) != 2:
            names = ", ".join(label.names[index] for index in found) or "none"
            raise RunError(
                f"{self.run.path}: the rows are of {len(found)} classes ({names}), but a direction lies "
                "between two; choose two with data.rows.fields={label: [negative, positive]}"
            )
        return found[0], found[1]

    def _check_counts(self, counts: Sequence[int]) -> None:
        if min(counts) == 0:
            raise RunError(
                f"{self.run.path}: the train split has {counts[0]} rows of {self.negative!r} and "
                f"{counts[1]} of {self.positive!r}, and a direction needs both; give the split more groups "
                "or change its seed"
            )

    @cached_property
    def _groups(self) -> torch.Tensor:
        """Number of each prompt's group, int64 [prompts]; -1 for none."""
        return _numbered(self.run.prompts(["group"])["group"].to_pylist())

    @cached_property
    def _confounds(self) -> torch.Tensor:
        """Number of each prompt's value of the confound field, int64 [prompts]; -1 for none."""
        if self.confound is None:
            return torch.full((self.run.manifest.header.n_prompts,), -1)
        return _numbered(self._field(self.confound))

    def _has_confound(self, name: str) -> Iterator[bool]:
        return (value is not None for value in self._field(name))

    def _field(self, name: str) -> list[str | None]:
        """JSON of the field of each prompt, None where a prompt does not have it."""
        values: list[str | None] = []
        for text in self.run.prompts(["fields"])["fields"].to_pylist():
            try:
                value = json.loads(text).get(name)
            except (ValueError, AttributeError, RecursionError) as error:
                raise BadShardError(
                    f"{self.run.path}: the prompt table has fields that are no JSON object ({error})"
                ) from error
            values.append(None if value is None else json.dumps(value, sort_keys=True))
        return values


def _numbered(values: Sequence[str | None]) -> torch.Tensor:
    """Equal values get equal numbers, counted up from 0 in order of appearance; None gets -1."""
    numbers: dict[str, int] = {}
    return torch.tensor(
        [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values],
        dtype=torch.int64,
    )
