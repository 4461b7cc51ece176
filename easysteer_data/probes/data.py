"""What a probe learns from and is measured on: a datamodule's splits as batches of labelled examples.

The only file here that reads a run. An example is a row, or a prompt with all its rows where a probe pools.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError
from easysteer_data.probes.layer_result import Task
from easysteer_data.probes.metrics import check_classes
from easysteer_data.probes.result import SplitCounts
from easysteer_data.serving.dataset import Batch
from easysteer_data.types import SPLITS, Split


@dataclass(frozen=True)
class ProbeData:
    """Labelled examples of a run.

    A batch is that of the datamodule; of pooled examples, `y` and `prompt` are those of the examples, in
    order, and `example` int64 [rows] is the example that each row is of.

    Attributes:
        datamodule: the run, its layers, which rows.
        pooled: whether a prompt with all its rows is one example.
        labels: label of each prompt of the run, instead of the run's own; for controls.
        seed: of the order of pooled examples in training.
    """

    datamodule: ActivationDataModule
    pooled: bool = False
    labels: torch.Tensor | None = None
    seed: int = 0

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Decoder blocks, in the order of the batches' axis of layers."""
        return self.datamodule.layer_ids

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.datamodule.width

    @property
    def task(self) -> Task:
        """Whether the labels are classes or numbers; RunError where there are none."""
        kind = self.datamodule.label.kind
        if kind is None:
            raise RunError(
                f"{self.datamodule.run.path} has no labels, but a probe needs classes or numbers; capture a"
                " corpus that has some"
            )
        return kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of their index; empty for numbers."""
        return self.datamodule.label.names

    def check(self) -> None:
        """Raise RunError unless a probe can be trained and measured on every split."""
        for split in SPLITS:
            targets = self._labels_of_rows(split)
            missing = targets < 0 if self.task == "classes" else targets.isnan()
            if n_missing := int(missing.sum()):
                raise RunError(
                    f"{self.datamodule.run.path}: {n_missing} of {len(targets)} rows of split {split!r} have"
                    " no label; leave them out with data.labelled_only=true"
                )
            if self.task == "classes":
                counts = torch.bincount(targets, minlength=len(self.label_names)).tolist()
                check_classes(split, counts, self.label_names)
        if self.pooled and all(self.counts(s).rows == self.counts(s).prompts for s in SPLITS):
            raise RunError(
                f"{self.datamodule.run.path} has one row a prompt, and a probe that pools needs several;"
                " capture with select=all or select=last_k"
            )

    def relabelled(self, labels: torch.Tensor) -> ProbeData:
        """The same examples, with other labels of the run's prompts."""
        return replace(self, labels=labels)

    def counts(self, split: Split) -> SplitCounts:
        """What a split holds."""
        n_prompts = len(torch.unique(self._prompts_of_rows(split)))
        return SplitCounts(
            rows=len(self._prompts_of_rows(split)),
            prompts=n_prompts,
            groups=len(torch.unique(self.groups(split))),
            examples=n_prompts if self.pooled else len(self._prompts_of_rows(split)),
        )

    def prompts(self, split: Split) -> torch.Tensor:
        """Prompt of each example, int64 [examples], ascending."""
        prompts = self._prompts_of_rows(split)
        return torch.unique_consecutive(prompts) if self.pooled else prompts

    def groups(self, split: Split) -> torch.Tensor:
        """Number of each example's group, int64 [examples]; a prompt without a group is one of its own."""
        return self.group_of_prompt[self.prompts(split)]

    def targets(self, split: Split) -> torch.Tensor:
        """Label of each example, int64 or float32 [examples]."""
        targets = self._labels_of_rows(split)
        if not self.pooled:
            return targets
        prompts = self._prompts_of_rows(split)
        first = torch.ones(len(prompts), dtype=torch.bool)
        first[1:] = prompts[1:] != prompts[:-1]
        return targets[first]

    def batches(self, split: Split) -> Iterator[Batch]:
        """The examples of a split, once each, in the run's order."""
        if self.pooled:
            yield from self._pooled(split, np.arange(self.counts(split).prompts))
            return
        for batch in self.datamodule.ordered_dataloader(split):
            yield self._labelled(self.datamodule.on_after_batch_transfer(batch, 0))

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        """The train split's examples in the order of an epoch."""
        if self.pooled:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.counts("train").prompts)
            yield from self._pooled("train", order)
            return
        loader = self.datamodule.train_dataloader()
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for batch in loader:
            yield self._labelled(self.datamodule.on_after_batch_transfer(batch, 0))

    @property
    def n_train_batches(self) -> int:
        """Batches of `shuffled`."""
        if self.pooled:
            order = np.random.default_rng([self.seed, 0]).permutation(self.counts("train").prompts)
            return len(self._cuts("train", order))
        return len(self.datamodule.train_dataloader())

    @cached_property
    def group_of_prompt(self) -> torch.Tensor:
        """Number of each prompt's group, int64 [prompts of the run]."""
        names = self.datamodule.run.prompts(["group"])["group"].to_pylist()
        numbers: dict[object, int] = {}
        # A name is a text, so that a prompt's own number stands for no group.
        keys = [number if name is None else name for number, name in enumerate(names)]
        return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])

    def _rows(self, split: Split) -> torch.Tensor:
        return self.datamodule.dataset(split).rows

    def _prompts_of_rows(self, split: Split) -> torch.Tensor:
        return self.datamodule.run.index.prompt[self._rows(split)].long()

    def _labels_of_rows(self, split: Split) -> torch.Tensor:
        if self.labels is not None:
            return self.labels[self._prompts_of_rows(split)]
        _ = self.task  # raises where there are none
        return cast("torch.Tensor", self.datamodule.run.labels)[self._rows(split)]

    def _labelled(self, batch: Batch) -> Batch:
        return batch if self.labels is None else {**batch, "y": self.labels[batch["prompt"].long()]}

    def _pooled(self, split: Split, order: np.ndarray) -> Iterator[Batch]:
        """Prompts in an order of their places in the split, whole ones in each batch."""
        dataset = self.datamodule.dataset(split)
        starts, counts = self._extents(split)
        targets, prompts = self.targets(split), self.prompts(split)
        for chosen in self._cuts(split, order):
            places = np.concatenate([np.arange(starts[p], starts[p] + counts[p]) for p in chosen])
            batch = self.datamodule.on_after_batch_transfer(dataset[places], 0)
            example = torch.arange(len(chosen)).repeat_interleave(torch.from_numpy(counts[chosen]))
            own = torch.from_numpy(chosen)
            yield {**batch, "y": targets[own], "prompt": prompts[own], "example": example}

    def _cuts(self, split: Split, order: np.ndarray) -> Sequence[np.ndarray]:
        """The order cut where a batch has about `batch_size` rows; in one piece where that is None."""
        batch_size = self.datamodule.hparams["batch_size"]
        if batch_size is None:
            return [order]
        before = np.cumsum(self._extents(split)[1][order]) - self._extents(split)[1][order]
        return np.split(order, np.flatnonzero(np.diff(before // batch_size)) + 1)

    def _extents(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """First row of each prompt among the split's, and how many it has."""
        _, starts, counts = np.unique(
            self._prompts_of_rows(split).numpy(), return_index=True, return_counts=True
        )
        return starts, counts
