"""A loader of streamed rows that knows how far it was read, and goes on from there. Knows no Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from easysteer_data.errors import SettingsError
from easysteer_data.serving.dataset import Batch
from easysteer_data.serving.loader import differences
from easysteer_data.serving.normalise import Normaliser
from easysteer_data.serving.sampler import Progress
from easysteer_data.shards.streaming import StreamedRows


class StreamLoader:
    """Batches of StreamedRows, which are told the epoch when its first batch is asked for.

    Not a DataLoader but around one: Lightning takes the length of streams for a mistake.

    Args:
        rows: what is served.
        normaliser: makes `x` in each loader process.
        dtype: element type of `x`.
        epoch: says which epoch it is; None counts the iterations.
        identity: plain values that determine the order of rows; a state of others is refused.
    """

    def __init__(
        self,
        rows: StreamedRows,
        normaliser: Normaliser,
        dtype: torch.dtype,
        epoch: Callable[[], int] | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self._rows = rows
        self._loader = DataLoader(
            rows,
            batch_size=None,
            num_workers=rows.num_workers,
            collate_fn=partial(_normalised, normaliser=normaliser, dtype=dtype),
            pin_memory=torch.accelerator.is_available(),
            # A store's threads don't live on in a forked process, which would wait for them for ever.
            multiprocessing_context="spawn" if rows.num_workers else None,
            persistent_workers=rows.num_workers > 0,
        )
        self._epoch = epoch
        self._next_epoch = 0
        self._identity = dict(identity or {})
        self._resumed = Progress(-1)
        self._taken = Progress(-1)

    def __len__(self) -> int:
        """Batches of a whole epoch, those that an earlier run was trained on included."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch that it is when the first batch is asked for."""
        # A generator: Lightning makes the first iterator of a fit before the epoch is restored.
        epoch = self._next_epoch if self._epoch is None else self._epoch()
        self._next_epoch = epoch + 1
        n_done = self._resumed.n_batches if epoch == self._resumed.epoch else 0
        self._rows.begin_at(epoch, n_done)
        for number, batch in enumerate(self._loader, start=n_done + 1):
            self._taken = Progress(epoch, number)
            yield batch

    @property
    def n_taken(self) -> int:
        """Batches of the epoch that were handed out last, or were left out because they are done."""
        return max(self._taken, self._resumed, key=lambda progress: progress.epoch).n_batches

    def state_dict(self) -> dict[str, Any]:
        """Plain values: epoch and batches handed out, and what the order depends on."""
        return self.state_after(self.n_taken)

    def state_after(self, n_batches: int) -> dict[str, Any]:
        """The state when `n_batches` of the epoch have been trained on."""
        epoch = max(self._taken.epoch, self._resumed.epoch, 0)
        return {"epoch": epoch, "n_batches": n_batches, "n_epoch": len(self), "order": self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, unless the loader was made to go on already.

        Raises:
            SettingsError: it is of the middle of an epoch of another order, whose rest is not known here.
        """
        if self._resumed.epoch >= 0:
            return
        epoch, n_batches, order = int(state["epoch"]), int(state["n_batches"]), state["order"]
        changed = differences(order, self._identity)
        if changed and 0 < n_batches < int(state["n_epoch"]):
            raise SettingsError(
                f"training stopped within epoch {epoch} of a stream, whose batches would be others now:"
                f" {changed}; go on with the same ones, from a checkpoint of an epoch's end, or with a local"
                " copy of the run (mirror_run)"
            )
        is_over = n_batches == int(state["n_epoch"])
        self._resumed = Progress(epoch, len(self) if is_over else n_batches)
        self._next_epoch = epoch + is_over


def _normalised(batch: Batch, normaliser: Normaliser, dtype: torch.dtype) -> Batch:
    return {**batch, "x": normaliser(batch["x"], dtype)}
