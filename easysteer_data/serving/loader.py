"""A loader that knows how far it has been read, and can go on from there. Knows no Lightning."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader

from easysteer_data.data_options import LoaderOptions
from easysteer_data.errors import SettingsError
from easysteer_data.serving.dataset import ActivationDataset, Batch
from easysteer_data.serving.sampler import BatchSampler, Progress

# Rows that are looked up at once where they are loaded in this process: some MiB of places and labels.
_LOCATED_ROWS = 16_384


class ActivationLoader(DataLoader[Batch]):
    """A DataLoader over a BatchSampler whose `state_dict` says how many batches it has handed out.

    Loader processes read ahead; what they have read and nobody has taken does not count.

    Attributes:
        identity: plain values that determine the order of rows; a state of others is refused.
    """

    identity: Mapping[str, Any] = {}  # set by whoever builds the loader: the constructor is DataLoader's
    _taken: Sequence[int] = (-1, 0)  # epoch, batches of it

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """The rest of the epoch that the sampler is set to when the first batch is asked for."""
        # A generator: Lightning makes the first iterator of a fit before it sets the epoch.
        epoch, n_done = self._sampler.epoch, self._sampler.n_batches_done
        batches = self._batches_of_this_process() if self.num_workers == 0 else super().__iter__()
        taken = [epoch, n_done]
        for batch in batches:
            taken[1] += 1
            if self._taken is not taken:  # a DataLoader takes long to set an attribute
                self._taken = taken
            yield batch

    def _batches_of_this_process(self) -> Iterator[Batch]:
        """Look up the rows of many batches at once: one batch's look-ups cost as much as copying its rows."""
        steps = iter(self._sampler)
        n_steps = 1
        while places := [*islice(steps, n_steps)]:
            batches = cast("ActivationDataset", self.dataset).batches(places)
            if not self.pin_memory:
                yield from batches
            else:
                for batch in batches:
                    yield {name: values.pin_memory() for name, values in batch.items()}
            n_steps = max(1, _LOCATED_ROWS // max(len(places[0]), 1))

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
    elif progress.n_rows > 0 and (changed := differences(order, identity)):
        raise SettingsError(
            f"training stopped within epoch {progress.epoch}, whose rows would come in another order now:"
            f" {changed}; go on with the same ones, or from a checkpoint of an epoch's end"
        )
    sampler.resume(progress)
    sampler.set_epoch(progress.epoch)


class Resumable(Protocol):
    """A loader that knows how many batches it has handed out."""

    @property
    def n_taken(self) -> int: ...  # noqa: D102
    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def state_after(self, n_batches: int) -> dict[str, Any]: ...  # noqa: D102


def trained_state(
    loader: Resumable | None, trainer: Any, resumed: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How far training has come in its epoch; before it has begun, what it was resumed from, or nothing.

    Args:
        loader: of the train split, None before there is one.
        trainer: Lightning's Trainer, None in loops of one's own.
        resumed: the state that training goes on from.
    """
    if loader is None:
        return dict(resumed or {})
    if trainer is None:
        return loader.state_dict()
    n_trained: int = trainer.fit_loop.epoch_loop.batch_progress.current.processed
    # A batch that was handed out, but not trained on before an exception, is still to do.
    return loader.state_after(min(loader.n_taken, n_trained))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What of an order has changed, for people; empty where nothing has."""
    return ", ".join(
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    )


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


def _start_method() -> str | None:
    """How loader processes start; None = torch's own way.

    An engine that runs in this process leaves OpenMP threads behind, and a process forked then waits for them
    for ever: it keeps torch from setting their number (vllm/v1/worker/cpu_worker.py, 0.32.0).
    """
    return "spawn" if "vllm" in sys.modules else None


def _whole(batch: Any) -> Any:
    """Leave a batch as it is: the data set has built all of it."""
    return batch
