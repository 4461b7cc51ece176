"""The order of the rows of an epoch, and how well it mixes them. Knows places and classes, no run.

Every order is a pure function of (seed, epoch), made of whole arrays: a tenth of a second for a million rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from easysteer_data.data_options import RowOrder
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.serving.sampler import RowNumbers

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """Places of a data set in the order of an epoch, see RowOrder.

    Attributes:
        n_rows: rows of the data set, of which an epoch takes fewer or more where classes are balanced.
        seed: of every draw.
        options: shuffle, window and balance.
        blocks: int64 [n_blocks], ascending, the first place of each pack; for `blocks` only.
        classes: int64 [n_rows], for `undersample` and `oversample` only.

    Raises:
        RunError: classes are to be balanced and a row has none.
    """

    n_rows: int
    seed: int
    options: RowOrder = field(default_factory=RowOrder)
    blocks: RowNumbers | None = None
    classes: Classes | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_classed(self.classes)

    def __len__(self) -> int:
        return self.n_rows if self.classes is None else sum(n for _, n in self._shares(self.classes))

    def __call__(self, epoch: int) -> RowNumbers:
        """Places of the epoch's rows."""
        random = np.random.default_rng((self.seed, epoch))
        places = self._places(random)
        if self.options.shuffle == "none":
            return places
        if self.blocks is None:
            return random.permutation(places)
        return _mixed_blocks(places, self.blocks, self.options.window_rows, random)

    def _places(self, random: np.random.Generator) -> RowNumbers:
        """Which places the epoch takes, ascending."""
        if self.classes is None:
            return np.arange(self.n_rows)
        chosen = []
        for places, n in self._shares(self.classes):
            n_whole, n_more = divmod(n, len(places))
            chosen += [places] * n_whole
            chosen.append(random.choice(places, n_more, replace=False, shuffle=False))
        return np.sort(np.concatenate(chosen))

    def _shares(self, classes: Classes) -> list[tuple[RowNumbers, int]]:
        """Of every class that there is, its places and how many of them an epoch takes."""
        places = [np.flatnonzero(classes == code) for code in np.unique(classes)]
        counts = [len(one) for one in places]
        n = min(counts) if self.options.balance == "undersample" else max(counts)
        return [(one, n) for one in places]


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How an order mixes blocks of neighbouring rows, and what that costs.

    Attributes:
        mixing: different blocks in a batch, over those of a fully random order: 1 is as good as random,
            close to 0 is the stored order.
        n_blocks_open: blocks between their first and last row, on average: what the page cache should hold.
        n_blocks: blocks of the data set.
    """

    mixing: float
    n_blocks_open: float
    n_blocks: int


def shuffle_quality(order: RowNumbers, blocks: RowNumbers, batch_size: int) -> ShuffleQuality:
    """Measure an order of places (int64 [n]) whose blocks begin at `blocks`, in batches of `batch_size`."""
    block = blocks.searchsorted(order, side="right") - 1
    n_batches = len(block) // batch_size
    if n_batches == 0:
        raise SettingsError(f"{len(order)} rows are less than a batch of {batch_size}: nothing to measure")
    batches = np.sort(block[: n_batches * batch_size].reshape(n_batches, batch_size), axis=1)
    n_different = 1 + (np.diff(batches, axis=1) > 0).sum(axis=1).mean()
    share = np.bincount(block, minlength=len(blocks)) / len(block)
    n_random = (1 - (1 - share) ** batch_size).sum()
    last = np.zeros(len(blocks), dtype=np.int64)
    last[block] = np.arange(len(block))  # of equal indices the last assignment stays
    first = np.full(len(blocks), 0)
    first[block[::-1]] = np.arange(len(block))[::-1]
    n_open = (last - first + (share > 0)).sum() / len(block)
    return ShuffleQuality(float(n_different / n_random), float(n_open), len(blocks))


def class_weights(classes: Classes, n_classes: int) -> torch.Tensor:
    """Weight of each class, float32 [n_classes]: rows / (classes with rows * rows of the class).

    So the weights of the rows add up to their number; 0 for a class without rows.

    Raises:
        RunError: a row has no class.
    """
    check_classed(classes)
    counts = np.bincount(classes, minlength=n_classes)
    weights = len(classes) / (np.count_nonzero(counts) * np.maximum(counts, 1)) * (counts > 0)
    return torch.from_numpy(weights).float()


def check_classed(classes: Classes) -> None:
    """Raise RunError where a row has no class."""
    if n_without := int((classes < 0).sum()):
        raise RunError(
            f"{n_without} of {len(classes)} rows have no label, so that classes can't be balanced: leave them"
            " out with labelled_only=True"
        )


def _mixed_blocks(
    places: RowNumbers, blocks: RowNumbers, window_rows: int, random: np.random.Generator
) -> RowNumbers:
    """Blocks in random order, each row then moved by up to `window_rows` places."""
    block_order = random.permutation(len(blocks))
    of_blocks = block_order[blocks.searchsorted(places, side="right") - 1]
    queue = places[np.argsort(of_blocks, kind="stable")]
    moved = np.arange(len(queue)) + random.random(len(queue)) * window_rows
    return queue[np.argsort(moved)]
