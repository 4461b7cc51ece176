"""The division of an epoch into batches: part of its order, step, rank, and what is still to do.

Knows row counts and an order as a function of the epoch: no run, no tensor, no Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, get_args

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from easysteer_data.data_options import Tail
from easysteer_data.errors import SettingsError

RowNumbers = npt.NDArray[np.int64]

TAILS: tuple[Tail, ...] = get_args(Tail)


class Order(Protocol):
    """An epoch's row numbers, int64 [n], as a pure function of the epoch; n is always the same."""

    def __len__(self) -> int: ...
    def __call__(self, epoch: int) -> RowNumbers: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """Rows 0 to n_rows - 1 as they are, in every epoch."""

    n_rows: int

    def __len__(self) -> int:
        return self.n_rows

    def __call__(self, epoch: int) -> RowNumbers:  # noqa: ARG002, D102 - the same for all
        return np.arange(self.n_rows)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come in an epoch; the same on every rank.

    Attributes:
        epoch: the epoch.
        n_batches: batches of it that each rank has been trained on.
        n_rows: rows of its order that all ranks together have been trained on.
    """

    epoch: int
    n_batches: int = 0
    n_rows: int = 0


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How the rows of an epoch, already in order, are cut into steps and shared by ranks.

    Step s takes the next `n_ranks * batch_size` rows and rank r the r-th part of them, so the rows
    consumed after s steps are a prefix of the order whatever the number of ranks: an epoch that was
    stopped there is finished by a plan with `n_done`.

    Attributes:
        n_rows: rows of the epoch.
        batch_size: the most rows of a batch on one rank; None puts the whole epoch into one step.
        n_ranks: processes that share the epoch.
        tail: what becomes of the last rows, too few for a whole step. `spread`: they are a step of
            smaller batches, shared evenly, so that every row comes exactly once (where they are
            fewer than the ranks, the step before gives some of its rows). `drop`: they are left out.
            `pad`: rows from the start of the order fill the step, so that all batches are whole.
        n_done: rows at the start of the order that are done with; steps count from there.

    Raises:
        SettingsError: a value is out of range, or no division gives every rank the same number of
            batches with at least one row in each.
    """

    n_rows: int
    batch_size: int | None
    n_ranks: int = 1
    tail: Tail = "spread"
    n_done: int = 0

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise SettingsError(f"tail is {self.tail!r}; choose one of {', '.join(TAILS)}")
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(
                f"batch_size is {self.batch_size}; use at least 1, or None for all rows at once"
            )
        if self.n_done and not 0 < self.n_done <= self.n_rows:
            raise SettingsError(f"{self.n_done} rows of an epoch of {self.n_rows} can't be done")
        n_left = self.n_rows - self.n_done
        if self.n_done and (n_left == 0 or self.tail == "drop"):
            return
        if self.tail == "drop" and len(self) == 0:
            raise SettingsError(
                f"tail='drop' leaves no batch: {n_left} rows are fewer than {self.n_ranks} ranks x"
                f" batch_size {self.batch_size}; lower batch_size or use tail='spread'"
            )
        uneven = n_left < self.n_ranks or (self.batch_size == 1 and n_left % self.n_ranks > 0)
        if n_left == 0 or (self.tail == "spread" and uneven):
            raise SettingsError(
                f"{n_left} rows can't give {self.n_ranks} ranks equally many batches of at most"
                f" {self.batch_size} rows, each row once; use fewer ranks, a batch_size of at least 2, or"
                " tail='pad'"
            )

    def __len__(self) -> int:
        """Batches of every rank."""
        n_whole, rest = divmod(self.n_rows - self.n_done, self._n_rows_of_step())
        return n_whole + (rest > 0 and self.tail != "drop")

    def start(self, step: int) -> int:
        """Rows of the order that all ranks together have consumed before `step`, `n_done` included.

        Beyond `n_rows` where the tail is padded.
        """
        n_rows_of_step = self._n_rows_of_step()
        start = self.n_done + step * n_rows_of_step
        if self.tail != "spread" or step < len(self) - 1:
            return start
        if step == len(self):
            return self.n_rows
        return self.n_rows - max(self.n_rows - start, self.n_ranks)

    def batch(self, step: int, rank: int) -> slice:
        """Place in the order of the rows that `rank` gets at `step`."""
        start = self.start(step)
        n_rows = self.start(step + 1) - start
        return slice(start + rank * n_rows // self.n_ranks, start + (rank + 1) * n_rows // self.n_ranks)

    def batches(self, rank: int) -> Iterator[slice]:
        """Places in the order of the rows that `rank` gets, step by step."""
        n_steps, n_rows_of_step = len(self), self._n_rows_of_step()
        first, last = (place * n_rows_of_step // self.n_ranks for place in (rank, rank + 1))
        n_even = max(n_steps - 2, 0)  # only a spread tail's steps, the last or the last two, are others
        for start in range(self.n_done, self.n_done + n_even * n_rows_of_step, n_rows_of_step):
            yield slice(start + first, start + last)
        for step in range(n_even, n_steps):
            yield self.batch(step, rank)

    def _n_rows_of_step(self) -> int:
        if self.batch_size is not None:
            return self.n_ranks * self.batch_size
        n_left = max(self.n_rows - self.n_done, self.n_ranks)
        return n_left if self.tail != "pad" else -(-n_left // self.n_ranks) * self.n_ranks


class BatchSampler(DistributedSampler[RowNumbers]):
    """One rank's batches of an epoch, each an int64 array of row numbers.

    Made for `DataLoader(batch_size=None, sampler=...)`: what it yields is a whole batch. It is a
    `DistributedSampler` because that is how Lightning's Trainer knows a loader whose rows are already
    shared between ranks: it then leaves the sampler in place, whatever `use_distributed_sampler` says,
    and calls `set_epoch` before each epoch.

    Args:
        plan: the division into steps and ranks.
        rank: whose batches to yield.
        order: the order of each epoch; None keeps the rows as they are.
        epoch: the epoch until `set_epoch` is called.
    """

    def __init__(self, plan: BatchPlan, rank: int = 0, order: Order | None = None, epoch: int = 0) -> None:
        # The parent asks its data set for nothing but a length.
        super().__init__(range(plan.n_rows), plan.n_ranks, rank, shuffle=order is not None)  # type: ignore[arg-type]
        self.plan = plan
        self.order: Order = StoredOrder(plan.n_rows) if order is None else order
        self.resumed: Progress | None = None
        self.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of the whole epoch, those that an earlier run was trained on included."""
        return self.n_batches_done + len(self._rest())

    def __iter__(self) -> Iterator[RowNumbers]:
        """What is left of the epoch."""
        plan = self._rest()
        order = self.order(self.epoch)
        for places in plan.batches(self.rank):
            if places.stop <= len(order):
                yield order[places]
            else:
                yield order.take(np.arange(places.start, places.stop), mode="wrap")

    @property
    def n_batches_done(self) -> int:
        """Batches of the epoch that it leaves out."""
        return self._done().n_batches

    def resume(self, progress: Progress) -> None:
        """Leave out, of the epoch that `progress` is of, what is done.

        Raises:
            SettingsError: the rest of the epoch can't be divided between the ranks.
        """
        replace(self.plan, n_done=progress.n_rows)
        self.resumed = progress

    def progress(self, n_batches: int) -> Progress:
        """Where the epoch stands after `n_batches` of the whole epoch on every rank."""
        rest = self._rest()
        n_steps = n_batches - self.n_batches_done
        # What the tail drops or pads makes no difference to an epoch that is over.
        n_rows = self.plan.n_rows if n_steps == len(rest) else rest.start(n_steps)
        return Progress(self.epoch, n_batches, n_rows)

    def _done(self) -> Progress:
        if self.resumed is not None and self.resumed.epoch == self.epoch:
            return self.resumed
        return Progress(self.epoch)

    def _rest(self) -> BatchPlan:
        return replace(self.plan, n_done=self._done().n_rows)
