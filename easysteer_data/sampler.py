"""The order of an epoch and its division into batches: which row numbers, which step, which rank.

Knows row counts only: no run, no tensor, no Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from easysteer_data.errors import SettingsError

RowNumbers = npt.NDArray[np.int64]

Tail = Literal["spread", "drop"]
TAILS: tuple[Tail, ...] = get_args(Tail)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How the rows of an epoch, already in order, are cut into steps and shared by ranks.

    Step s takes the next `n_ranks * batch_size` rows and rank r the r-th part of them, so the rows
    consumed after s steps are a prefix of the order whatever the number of ranks: an epoch that was
    stopped there is finished by a plan over the rest of the order.

    Attributes:
        n_rows: rows of the epoch.
        batch_size: the most rows of a batch on one rank; None puts the whole epoch into one step.
        n_ranks: processes that share the epoch.
        tail: what becomes of the last rows, too few for a whole step. `spread`: they are a step of
            smaller batches, shared evenly, so that every row comes exactly once (where they are
            fewer than the ranks, the step before gives some of its rows). `drop`: they are left out.

    Raises:
        SettingsError: a value is out of range, or no division gives every rank the same number of
            batches with at least one row in each.
    """

    n_rows: int
    batch_size: int | None
    n_ranks: int = 1
    tail: Tail = "spread"

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise SettingsError(f"tail is {self.tail!r}; choose one of {', '.join(TAILS)}")
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(
                f"batch_size is {self.batch_size}; use at least 1, or None for all rows at once"
            )
        if self.tail == "drop" and len(self) == 0:
            raise SettingsError(
                f"tail='drop' leaves no batch: {self.n_rows} rows are fewer than {self.n_ranks} ranks x"
                f" batch_size {self.batch_size}; lower batch_size or use tail='spread'"
            )
        uneven = self.n_rows < self.n_ranks or (self.batch_size == 1 and self.n_rows % self.n_ranks > 0)
        if self.tail == "spread" and (uneven or self.n_rows == 0):
            raise SettingsError(
                f"{self.n_rows} rows can't give {self.n_ranks} ranks equally many batches of at most"
                f" {self.batch_size} rows, each row once; use fewer ranks or a batch_size of at least 2"
            )

    def __len__(self) -> int:
        """Batches of every rank."""
        n_whole, rest = divmod(self.n_rows, self._n_rows_of_step())
        return n_whole + (rest > 0 and self.tail == "spread")

    def start(self, step: int) -> int:
        """Rows of the order that all ranks together have consumed before `step`."""
        n_rows_of_step = self._n_rows_of_step()
        if self.tail == "drop" or step < len(self) - 1:
            return step * n_rows_of_step
        if step == len(self):
            return self.n_rows
        return self.n_rows - max(self.n_rows - step * n_rows_of_step, self.n_ranks)

    def batch(self, step: int, rank: int) -> slice:
        """Place in the order of the rows that `rank` gets at `step`."""
        start = self.start(step)
        n_rows = self.start(step + 1) - start
        return slice(start + rank * n_rows // self.n_ranks, start + (rank + 1) * n_rows // self.n_ranks)

    def _n_rows_of_step(self) -> int:
        return max(self.n_rows, self.n_ranks) if self.batch_size is None else self.n_ranks * self.batch_size


class BatchSampler(DistributedSampler[RowNumbers]):
    """One rank's batches of an epoch, each an int64 array of row numbers in `0 .. n_rows - 1`.

    Made for `DataLoader(batch_size=None, sampler=...)`: what it yields is a whole batch. It is a
    `DistributedSampler` because that is how Lightning's Trainer knows a loader whose rows are already
    shared between ranks: it then leaves the sampler in place, whatever `use_distributed_sampler` says,
    and calls `set_epoch` before each epoch.

    Args:
        plan: the division into steps and ranks.
        rank: whose batches to yield.
        seed: the order is a random permutation, a pure function of (seed, epoch) on every rank; None
            keeps the rows as they are.
        epoch: the epoch until `set_epoch` is called.
    """

    def __init__(self, plan: BatchPlan, rank: int = 0, seed: int | None = None, epoch: int = 0) -> None:
        # The parent asks its data set for nothing but a length.
        rows = range(plan.n_rows)
        super().__init__(rows, plan.n_ranks, rank, shuffle=seed is not None, seed=seed or 0)  # type: ignore[arg-type]
        self.plan = plan
        self.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[RowNumbers]:
        order = self.order()
        for step in range(len(self.plan)):
            yield order[self.plan.batch(step, self.rank)]

    def order(self) -> RowNumbers:
        """Row numbers of the whole epoch, of all ranks, int64 [n_rows]."""
        if not self.shuffle:
            return np.arange(self.plan.n_rows)
        return np.random.default_rng((self.seed, self.epoch)).permutation(self.plan.n_rows)
