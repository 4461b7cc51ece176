"""A loader that knows how far it has been read, and can go on from there. Knows no Lightning."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader

from easysteer_data.data_options import LoaderOptions
from easysteer_data.errors import SettingsError
from easysteer_data.serving.sampler import BatchSampler, Progress

Batch = dict[str, torch.Tensor]

# Rows of batches that lie beside each other in memory, where they are loaded in this process.
_GATHERED_BYTES = 16 * 2**20


class ActivationLoader(DataLoader[Batch]):
    """A DataLoader over a BatchSampler whose `state_dict` says how many batches it has handed out.

    Loader processes read ahead; what they have read and nobody has taken does not count. Without loader
    processes, small batches are views of a few MiB that were gathered at once.

    Attributes:
        identity: plain values that determine the order of rows; a state of others is refused.
    """

    identity: Mapping[str, Any] = {}  # set by whoever builds the loader: the constructor is DataLoader's
    _taken = (-1, 0)  # epoch, batches of it

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """The rest of the epoch that the sampler is set to when the first batch is asked for."""
        # A generator: Lightning makes the first iterator of a fit before it sets the epoch.
        epoch, n_done = self._sampler.epoch, self._sampler.n_batches_done
        batches = self._batches_of_this_process() if self.num_workers == 0 else super().__iter__()
        for number, batch in enumerate(batches, start=n_done + 1):
            self._taken = (epoch, number)
            yield batch

    def _batches_of_this_process(self) -> Iterator[Batch]:
        """Gather some MiB at once and hand out views: a batch of its own costs as much again in calls."""
        steps = iter(self._sampler)
        n_steps = 1
        while places := [*islice(steps, n_steps)]:
            gathered: Batch = self.dataset[np.concatenate(places)]
            if self.pin_memory:
                gathered = {name: values.pin_memory() for name, values in gathered.items()}
            sizes = [len(step) for step in places]
            parts = {name: torch.split(values, sizes) for name, values in gathered.items()}
            for step in range(len(places)):
                yield {name: part[step] for name, part in parts.items()}
            n_steps = max(1, _GATHERED_BYTES * len(places) // max(gathered["x"].nbytes, 1))

    @property
    def n_taken(self) -> int:
        """Batches of the sampler's epoch that are handed out, or were left out because they are done."""
        epoch, n_batches = self._taken
        return n_batches if epoch == self._sampler.epoch else self._sampler.n_batches_done

    def state_dict(self) -> dict[str, Any]:
        """Plain values: epoch, batches and rows handed out, and what the order depends on."""
        return self.state_after(self.n_taken)

    def state_after(self, n_batches: int) -> dict[str, Any]:
        """The state when `n_batches` of the sampler's epoch have been trained on."""
        return {**asdict(self._sampler.progress(n_batches)), "order": dict(self.identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, unless the loader was made to go on already.

        Raises:
            SettingsError: the state is of another order, or the rest can't be divided between the ranks.
        """
        if self._sampler.resumed is None:
            resume_sampler(self._sampler, state, self.identity)

    @property
    def _sampler(self) -> BatchSampler:
        return cast("BatchSampler", self.sampler)


def resume_sampler(sampler: BatchSampler, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Set a sampler to go on where a loader's state says.

    Raises:
        SettingsError: the state is of the middle of an epoch of another order: the rest would not be the
            rows that are left; or the rest can't be divided between the ranks.
    """
    progress = Progress(int(state["epoch"]), int(state["n_batches"]), int(state["n_rows"]))
    order: Mapping[str, Any] = state["order"]
    if progress.n_rows == order["n_rows"]:  # nothing is left, whatever the order is now
        progress = replace(progress, n_rows=len(sampler.order))
    elif progress.n_rows > 0:
        changed = [key for key in sorted({*order, *identity}) if order.get(key) != identity.get(key)]
        if changed:
            was = ", ".join(f"{key} was {order.get(key)!r} and is {identity.get(key)!r}" for key in changed)
            raise SettingsError(
                f"training stopped within epoch {progress.epoch}, whose rows would come in another order now:"
                f" {was}; go on with the same ones, or from a checkpoint of an epoch's end"
            )
    sampler.resume(progress)
    sampler.set_epoch(progress.epoch)


def loader_arguments(num_workers: int, options: LoaderOptions) -> dict[str, Any]:
    """Arguments of a DataLoader whose data set builds whole batches."""
    pinned = torch.accelerator.is_available() if options.pinned is None else options.pinned
    alone = {"batch_size": None, "num_workers": num_workers, "collate_fn": _whole, "pin_memory": pinned}
    if num_workers == 0:
        return alone
    return {
        **alone,
        "persistent_workers": options.persistent,
        "prefetch_factor": options.prefetch,
        "multiprocessing_context": options.start_method or _start_method(),
    }


def ranks() -> tuple[int, int]:
    """Number of processes that share every epoch, and this one's number."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


def _start_method() -> str | None:
    """How loader processes start; None = torch's own way.

    An engine that runs in this process leaves OpenMP threads behind, and a process forked then waits for them
    for ever: it keeps torch from setting their number (vllm/v1/worker/cpu_worker.py, 0.32.0).
    """
    return "spawn" if "vllm" in sys.modules else None


def _whole(batch: Any) -> Any:
    """Leave a batch as it is: the data set has built all of it."""
    return batch
