"""The driver's end of an engine's mailboxes: a thread empties them while the engine runs.

A GPU's rows stay where they are as long as there are boxes, so that they are copied once, by whoever puts
them in order; where few are left, they are copied out at once. A CPU's always are: it is slow beside a copy,
and few boxes then take memory. Knows blocks and chunks, no request.
"""

from __future__ import annotations

import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.early_rows import EarlyLook, EarlyRows
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.mailbox import BOX_ALIGN, N_BOXES, Block, Mailbox
from easysteer_data.engine.ranks import Ranks
from easysteer_data.engine.spool import make_spool, remove_spool
from easysteer_data.engine.wire import Chunk, mailbox_name
from easysteer_data.types import STREAMS, Stream

_MIN_FREE = N_BOXES // 4  # with fewer free boxes, a worker may soon wait: rows are copied out
_of_engine: weakref.WeakKeyDictionary[Any, Mailboxes] = weakref.WeakKeyDictionary()


class Mailboxes:
    """The mailboxes of an engine, one a rank; they stay for its captures and go with it.

    Attributes:
        folder: where they lie.
        n_asked: bytes of the boxes of each, as asked for.
        n_bytes: of each, as there is room.
        rows: memory for rows in order.

    Args:
        n_asked: bytes of the boxes of each rank's.
    """

    def __init__(self, n_asked: Sequence[int]) -> None:
        self.folder = make_spool()
        self.n_asked = list(n_asked)
        room = min(1.0, shutil.disk_usage(self.folder).free / 2 / sum(n_asked))
        whole = N_BOXES * BOX_ALIGN
        self.n_bytes = [max(whole, int(room * n) // whole * whole) for n in n_asked]
        self.of_rank = [
            Mailbox(self.folder / mailbox_name(rank), n_bytes, create=True)
            for rank, n_bytes in enumerate(self.n_bytes)
        ]
        self.rows = HostMemory(max(self.n_bytes))
        self.remove = weakref.finalize(self, remove_spool, self.folder)


def remove_mailboxes(llm: Any) -> None:
    """Give the shared memory of an engine's mailboxes back, if it has any."""
    mailboxes = _of_engine.pop(llm, None)
    if mailboxes is not None:
        mailboxes.remove()


def mailboxes_of(llm: Any, n_asked: Sequence[int]) -> Mailboxes:
    """Return the engine's mailboxes, empty; made where there are none or one is too small."""
    mailboxes = _of_engine.get(llm)
    if mailboxes is None or any(there < n for there, n in zip(mailboxes.n_asked, n_asked, strict=True)):
        remove_mailboxes(llm)
        mailboxes = _of_engine[llm] = Mailboxes(n_asked)
    for mailbox in mailboxes.of_rank:
        mailbox.reset()
    return mailboxes


class Channel:
    """A thread that turns whole blocks of all ranks into chunks; a context.

    Args:
        mailboxes: the engine's.
        ranks: the engine's workers.
        shapes: what a block of each holds.
        look: called now and then while rows are waited for; raises if the engine has died.
        in_place: leave rows where they are, as far as there are boxes.
        idle_s: between two looks for blocks.
        early: called by the thread at each look with the rows of steps that have begun since the last one;
            only with one worker, whose rows are left where they are.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        ranks: Ranks,
        shapes: Sequence[BlockShape],
        look: Callable[[], None],
        *,
        in_place: bool,
        idle_s: float = 0.001,
        early: Callable[[Sequence[EarlyRows]], None] | None = None,
    ) -> None:
        self._ranks = ranks
        self._shapes = shapes
        self._in_place = in_place
        self._idle_s = idle_s
        self._look = look
        self._mailboxes = mailboxes.of_rank
        self._early = early if in_place and len(shapes) == 1 else None
        self._early_look = EarlyLook(self._mailboxes[0], shapes[0])
        self._n_seen = [0 for _ in shapes]
        self._chunks: list[deque[Chunk]] = [deque() for _ in shapes]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="easysteer-data-rows", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for mailbox in self._mailboxes:
            mailbox.close()

    @property
    def has_failed(self) -> bool:
        """Whether a worker has an error to tell."""
        return self._failed()

    @property
    def keeps_back(self) -> bool:
        """Whether a worker has rows that it hands over only when it is asked, or later."""
        return any(mailbox.keeps_back for mailbox in self._mailboxes)

    def _failed(self) -> bool:
        return any(mailbox.has_failed for mailbox in self._mailboxes)

    def take(self) -> list[Chunk]:
        """Return the rows of all steps that the workers have run, since the last call."""
        # Ranks run the same steps, not in the same moment.
        n_blocks = max(mailbox.n_published for mailbox in self._mailboxes)
        for mailbox in self._mailboxes:
            mailbox.wait(n_blocks, self._look, self._failed)
        return self.whole()

    def whole(self) -> list[Chunk]:
        """Return the rows that are there already, since the last call."""
        self._drain()
        if self._error is not None:
            raise self._error
        with self._lock:
            n_chunks = min(len(chunks) for chunks in self._chunks)
            return [self._ranks.join([chunks.popleft() for chunks in self._chunks]) for _ in range(n_chunks)]

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if self._early is not None:
                    begun = self._early_look.new()
                    self._early(begun if self._leaves(self._mailboxes[0]) else ())
                if not self._drain():
                    self._ended.wait(self._idle_s)
        except Exception as error:  # raised by the next take
            self._error = error

    def _drain(self) -> bool:
        found = False
        with self._lock:
            for rank, mailbox in enumerate(self._mailboxes):
                for block in mailbox.blocks(self._n_seen[rank]):
                    found = True
                    self._n_seen[rank] += 1
                    self._chunks[rank].append(self._chunk(rank, mailbox, block))
        return found

    def _leaves(self, mailbox: Mailbox) -> bool:
        """Whether rows stay where they are."""
        return self._in_place and mailbox.n_free >= _MIN_FREE

    def _chunk(self, rank: int, mailbox: Mailbox, block: Block) -> Chunk:
        if self._leaves(mailbox):
            memory = mailbox.hold(block)
        else:
            memory = mailbox.box(block.box, block.n_bytes).clone()
            mailbox.release(block)
        return _chunk_of(self._shapes[rank].views(memory, block.n_rows, has_values=block.has_values))


def _chunk_of(views: Mapping[str, torch.Tensor]) -> Chunk:
    def of(prefix: str) -> dict[Stream, torch.Tensor]:
        return {s: views[f"{prefix}.{s}"] for s in STREAMS if f"{prefix}.{s}" in views}

    values = {stream: list(layers) for stream, layers in of("values").items()}
    return Chunk(views["prompt"], views["position"], views["token_id"], values, of("peaks"))
