"""Boxes of shared memory in which a worker hands rows to the driver: nothing is pickled or sent.

One writer and one reader, in one process or two. A GPU's copies land in a box directly. Knows bytes and
counters; `block.py` says what the bytes mean.
"""

from __future__ import annotations

import mmap
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from easysteer_data.errors import EngineError

N_BOXES = 64
BOX_ALIGN = 64  # bytes of a box are a multiple
_ENTRY = 4  # box, bytes, rows, whether rows have values
_HEADER_BYTES = 8192
# Each in a cache line of its own.
_PUBLISHED, _COMPLETED, _FAILED, _CLOSED, _KEPT, _ANNOUNCED = range(0, 6 * 8, 8)
_TABLE, _USED = 64, 64 + N_BOXES * _ENTRY  # blocks by number, and one word a box: 1 = in use
_TAKINGS = _USED + N_BOXES  # one word a box: the number of the taking that has it, or had it last
_EARLY = _TAKINGS + N_BOXES  # box, rows and taking of blocks that are announced before they are filled
_POLL_S = 0.0001


@dataclass(frozen=True, slots=True)
class Block:
    """A block of rows in a box.

    Attributes:
        number: blocks are counted from 0 on.
        box: where it lies.
        n_bytes: its length.
        n_rows: rows in it.
        has_values: whether the rows' values are there, beside their labels and peaks.
    """

    number: int
    box: int
    n_bytes: int
    n_rows: int
    has_values: bool


@dataclass(frozen=True, slots=True)
class Announced:
    """A block that has begun, and may still be given up.

    Attributes:
        box: where it lies.
        n_rows: rows in it.
        taking: which of the box's blocks it is; see `Mailbox.taking`.
    """

    box: int
    n_rows: int
    taking: int


class Mailbox:
    """The memory that both ends see.

    Attributes:
        path: its file.
        box_bytes: bytes of a box.
        whole: uint8, all of it.
        held: the reader's: boxes that are looked into where they lie.
        completed: int64 [1], how many blocks are whole; written by whoever copies last, a GPU too.

    Args:
        path: the file, in shared memory.
        n_bytes: bytes of all boxes; a multiple of 64 for each.
        create: make the file; otherwise it must be there.
    """

    def __init__(self, path: Path, n_bytes: int, *, create: bool = False) -> None:
        self.path = path
        self.held: set[int] = set()
        self.box_bytes = n_bytes // N_BOXES
        total = _HEADER_BYTES + n_bytes
        with path.open("x+b" if create else "r+b") as file:
            if create:
                file.truncate(total)
            self._memory = mmap.mmap(file.fileno(), total)
        self._words = np.frombuffer(self._memory, np.int64, _HEADER_BYTES // 8)
        self._table = self._words[_TABLE:_USED].reshape(N_BOXES, _ENTRY)
        self._used = self._words[_USED : _USED + N_BOXES]
        self._takings = self._words[_TAKINGS : _TAKINGS + N_BOXES]
        self._early = self._words[_EARLY : _EARLY + 3 * N_BOXES].reshape(N_BOXES, 3)
        self.whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.completed = self.whole[:_HEADER_BYTES].view(torch.int64)[_COMPLETED : _COMPLETED + 1]

    @property
    def n_published(self) -> int:
        """Blocks that the writer has announced; their bytes may still be on their way."""
        return int(self._words[_PUBLISHED])

    @property
    def n_completed(self) -> int:
        """Blocks whose bytes are all there."""
        return int(self._words[_COMPLETED])

    @property
    def n_free(self) -> int:
        """Boxes that the writer can take."""
        return int((self._used == 0).sum())

    @property
    def has_failed(self) -> bool:
        """Whether the writer has an error to tell."""
        return bool(self._words[_FAILED])

    @property
    def keeps_back(self) -> bool:
        """Whether the writer has rows that it has not announced."""
        return bool(self._words[_KEPT])

    def box(self, number: int, n_bytes: int) -> torch.Tensor:
        """The first bytes of a box, uint8 [n_bytes].

        Raises:
            EngineError: they are more than it has.
        """
        if n_bytes > self.box_bytes:
            raise EngineError(f"{n_bytes:,} bytes of rows do not fit a box of {self.box_bytes:,}")
        start = _HEADER_BYTES + number * self.box_bytes
        return self.whole[start : start + n_bytes]

    def close(self) -> None:
        """Tell a waiting writer that nobody reads any more."""
        self._words[_CLOSED] = 1

    def reset(self) -> None:
        """Begin again; neither end may be at work. Boxes that are still held stay in use."""
        self._words[:_USED] = 0
        for box in range(N_BOXES):
            if box not in self.held:
                self._used[box] = 0

    def take_boxes(self, n: int) -> list[int] | None:
        """The writer's: take so many free boxes if there are, else none."""
        free = np.flatnonzero(self._used == 0)[:n]
        if len(free) < n:
            return None
        self._used[free] = 1
        self._takings[free] += 1  # before anything is written there, so that the reader can tell
        boxes: list[int] = free.tolist()
        return boxes

    def take_box(self) -> int:
        """The writer's: find a free box, waiting for one.

        Raises:
            EngineError: the reader has gone.
        """
        while (boxes := self.take_boxes(1)) is None:
            if self._words[_CLOSED]:
                raise EngineError("the driver has gone")
            time.sleep(_POLL_S)
        return boxes[0]

    def return_box(self, box: int) -> None:
        """The writer's: give back a box in which nothing was published."""
        self._used[box] = 0

    def publish(self, box: int, n_bytes: int, n_rows: int, *, has_values: bool) -> None:
        """The writer's: announce a block; `completed` must follow when its bytes are there."""
        number = self.n_published
        self._table[number % N_BOXES] = (box, n_bytes, n_rows, has_values)
        self._words[_PUBLISHED] = number + 1

    def announce(self, box: int, n_rows: int) -> None:
        """The writer's: say that a block is begun whose labels are there; it may still be given up."""
        number = int(self._words[_ANNOUNCED])
        self._early[number % N_BOXES] = (box, n_rows, self._takings[box])
        self._words[_ANNOUNCED] = number + 1

    def keep_back(self, kept: bool) -> None:
        """The writer's: say whether it has rows that it has not announced."""
        self._words[_KEPT] = kept

    def fail(self) -> None:
        """The writer's: tell the reader that there is an error to ask for."""
        self._words[_FAILED] = 1

    def blocks(self, seen: int) -> list[Block]:
        """The reader's: the whole blocks after the first `seen` ones."""
        found = []
        for number in range(seen, self.n_completed):
            box, n_bytes, n_rows, has_values = self._table[number % N_BOXES].tolist()
            found.append(Block(number, box, n_bytes, n_rows, bool(has_values)))
        return found

    @property
    def n_announced(self) -> int:
        """Blocks that the writer has begun before they were filled."""
        return int(self._words[_ANNOUNCED])

    def announced(self, seen: int, stop: int) -> list[Announced]:
        """The reader's: the blocks that were begun, from number `seen` to `stop`; the last ones if many."""
        numbers = range(max(seen, stop - N_BOXES), stop)
        return [Announced(*self._early[number % N_BOXES].tolist()) for number in numbers]

    def taking(self, box: int) -> int:
        """How often a box was taken: as long as this is the same, its memory is the same block's."""
        return int(self._takings[box])

    def hold(self, block: Block) -> torch.Tensor:
        """The reader's: a block's bytes where they lie; its box comes back when their last view is gone."""
        self.held.add(block.box)
        start = _HEADER_BYTES + block.box * self.box_bytes
        # The tensor and its views hold this array, whatever becomes of the mailbox.
        array = np.frombuffer(self._memory, np.uint8, block.n_bytes, start)
        weakref.finalize(array, self.release, block).atexit = False
        return torch.from_numpy(array)

    def release(self, block: Block) -> None:
        """The reader's: give a block's box back, in any order and also after its capture."""
        # In this order: once the box is free, another block in it may be held, which must not be forgotten.
        self.held.discard(block.box)
        self._used[block.box] = 0

    def wait(
        self,
        n_blocks: int,
        look: Callable[[], None],
        failed: Callable[[], bool] = lambda: False,
        check_s: float = 5.0,
    ) -> None:
        """The reader's: wait until so many blocks are whole, or this writer or another has failed.

        Args:
            n_blocks: how many.
            look: called now and then; may raise.
            failed: whether another writer has failed, without which no more blocks may come.
            check_s: seconds between two looks.
        """
        next_look = time.monotonic() + check_s
        while self.n_completed < n_blocks and not self.has_failed and not failed():
            if time.monotonic() > next_look:
                look()
                next_look = time.monotonic() + check_s
            time.sleep(_POLL_S)
