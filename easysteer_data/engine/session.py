"""The driver's side of a capture: starts the workers' recorders, takes their rows, always stops them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, get_args

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.channel import Channel, Mailboxes, mailboxes_of
from easysteer_data.engine.early_rows import EarlyRows
from easysteer_data.engine.frozen_heap import FrozenHeap
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.shares import kept_rows, mailbox_sizes, share_of_each
from easysteer_data.engine.spool import take
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import Groups, StartOrder, StreamShape, Sums
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.types import Reduce, Stream

# Bytes of rows between a worker and the driver, where the caller does not say.
MAILBOX_BYTES = {"cpu": 2**27, "cuda": 2**32}
# A CPU's steps are long, and whoever looks takes a core from them.
_IDLE_S = {"cpu": 0.01, "cuda": 0.001}

_LOOKS_PER_FETCH = 16  # of a capture that is reduced to means, whose sums take the device's memory

_busy: set[int] = set()


class CaptureSession:
    """One capture on an engine: a context in which the engine's tagged requests are recorded.

    Args:
        engine: the engine.
        shapes: stream -> what is captured of it, as checked by `TappedEngine.shape`.
        reduce: "last" or "mean" of each prompt's selected rows, None = all of them.
        budget_rows: rows of a layer that may be recorded, None = no bound.
        buffer_bytes: shared memory of each worker that hands rows over, for those on their way, None =
            128 MiB, on a GPU 4 GiB; less where there is less. It stays for the engine's next capture. Memory
            of rows in order that have been let go is kept for the next ones, up to as much with what is in
            use.
        memory_bytes: what rows may take in all instead: a quarter is shared by the workers together, the rest
            bounds what is kept.
        groups: prompts whose rows are wanted together; see StartOrder.
        early: see Channel.
    """

    in_place = ("cuda",)  # devices whose rows are left where they arrive; see `channel.py`

    def __init__(
        self,
        engine: TappedEngine,
        shapes: Mapping[Stream, StreamShape],
        reduce: Reduce | None = None,
        budget_rows: int | None = None,
        buffer_bytes: int | None = None,
        memory_bytes: int | None = None,
        groups: Groups | None = None,
        early: Callable[[Sequence[EarlyRows]], None] | None = None,
    ) -> None:
        if reduce not in (None, *get_args(Reduce)):
            raise SettingsError(f"reduce is {reduce!r}; choose last, mean or None")
        self.shapes = shapes
        self.reduce = reduce
        self._ranks = engine.ranks
        self._budget_rows = budget_rows
        self._groups = groups
        self._early = early
        self._device = engine.facts[0].device
        self._buffer_bytes = buffer_bytes or MAILBOX_BYTES[self._device]
        self._memory_bytes = memory_bytes
        self._max_tokens = engine.max_num_batched_tokens
        self._llm = engine.llm
        self._in_process = all(fact.pid == os.getpid() for fact in engine.facts)
        self._channel: Channel | None = None
        self._n_looks = 0
        self._heap = FrozenHeap()

    def __enter__(self) -> Self:
        if id(self._llm) in _busy:
            raise EngineError("a capture is already running on this engine; captures can't be nested")
        _busy.add(id(self._llm))
        try:
            order = self._order()
            shapes = [BlockShape.of(part) for part in self._ranks.parts(order)]
            mailboxes = self._mailboxes = self._shared(shapes)
            order = replace(
                order,
                mailboxes=str(mailboxes.folder),
                mailbox_bytes=mailboxes.n_bytes,
                block_rows=self._block_rows(mailboxes, shapes),
                kept_rows=kept_rows(shapes),
                spool=None if self._in_process else str(mailboxes.folder),
            )
            in_place, idle_s = self._device in self.in_place, _IDLE_S[self._device]
            channel = Channel(
                mailboxes,
                self._ranks,
                shapes,
                self._look,
                in_place=in_place,
                idle_s=idle_s,
                early=self._early,
            )
            self._llm.collective_rpc("easysteer_start", args=(order.to_wire(),))
            self._channel = channel.__enter__()
            self._heap.__enter__()
        except BaseException:
            _busy.discard(id(self._llm))
            raise
        return self

    def _order(self) -> StartOrder:
        """What is captured; where the rows go is still open."""
        return StartOrder(
            layers={stream: shape.layer_ids for stream, shape in self.shapes.items()},
            dtypes={stream: shape.dtype for stream, shape in self.shapes.items()},
            mailboxes="",
            mailbox_bytes=(),
            block_rows=1,
            kept_rows=1,
            groups=self._groups,
            reduce=self.reduce,
            budget_rows=self._budget_rows,
        )

    def _shared(self, shapes: Sequence[BlockShape]) -> Mailboxes:
        """The mailboxes, and what memory beside them is kept."""
        in_all = self._memory_bytes
        each = self._buffer_bytes if in_all is None else share_of_each(shapes, in_all // 4)
        mailboxes = mailboxes_of(self._llm, mailbox_sizes(shapes, each, self._max_tokens))
        mailboxes.rows.limit(max(mailboxes.n_bytes) if in_all is None else in_all - in_all // 4)
        return mailboxes

    def _block_rows(self, mailboxes: Mailboxes, shapes: Sequence[BlockShape]) -> int:
        """Rows in one block at most, the same for all ranks, so that their blocks fit together."""
        boxes = [mailbox.box_bytes for mailbox in mailboxes.of_rank]
        n_rows = min(shape.max_rows(n_bytes) for shape, n_bytes in zip(shapes, boxes, strict=True))
        if not n_rows:
            raise EngineError(
                f"a row of all layers does not fit a box of {max(boxes):,} bytes of shared memory in "
                f"{mailboxes.folder}: give buffer_bytes= (of a run, shards.max_buffer_gb=), make room "
                "there, or ask for fewer layers"
            )
        return n_rows

    def _look(self) -> None:
        """See whether the engine is alive, while its rows are waited for."""
        self._llm.collective_rpc("easysteer_facts")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._heap.__exit__(kind, error, trace)
        if self._channel is not None:
            # Before the engine is told to stop: it may be waiting for a free box.
            self._channel.__exit__(kind, error, trace)
        if isinstance(error, KeyboardInterrupt) and not self._in_process:
            # Ctrl-C in a terminal goes to the child as well, which then answers no more; where it lives on,
            # the next capture starts its recorder afresh.
            _busy.discard(id(self._llm))
            return
        try:
            self._llm.collective_rpc("easysteer_stop")
        except Exception as failure:
            if error is None:
                raise
            # What ended the block comes first; that the engine no longer answers may follow from it.
            error.add_note(f"the engine could not be told to stop recording: {failure}")
        finally:
            _busy.discard(id(self._llm))

    def fetch(self) -> Recorded:
        """Return what was recorded since the last fetch.

        The rows may lie in the mailbox, whose boxes they take until they are let go.

        Raises:
            EngineError: the recorder failed in a worker, or the budget of rows is used up.
        """
        channel = self._begun()
        # Rows come through the mailboxes; the engine is asked for what does not, and for what it kept.
        asks = self.reduce == "mean" or channel.keeps_back
        replies = self._ask() if asks else []
        chunks = channel.take()
        if channel.has_failed:
            replies = self._ask()
        sums = [None if reply["sums"] is None else self._load(reply["sums"]) for reply in replies]
        return Recorded(chunks, self._ranks.join_sums(sums))

    def _ask(self) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = self._llm.collective_rpc("easysteer_fetch")
        for rank, reply in enumerate(replies):
            if reply["error"] is not None:
                raise EngineError(f"recording failed in worker {rank}: {reply['error']}")
        return replies

    @property
    def memory(self) -> HostMemory:
        """Memory for rows in order; what comes back serves the engine's later captures."""
        return self._mailboxes.rows

    @property
    def keeps_back(self) -> bool:
        """Whether rows of steps that have run come only with `fetch`, or later."""
        return self._begun().keeps_back

    def look(self) -> Recorded:
        """Return the rows that are there already; to be called after every step of the engine.

        Waits for none, unless there is an error to raise, or sums are due.
        """
        channel = self._begun()
        self._n_looks += 1
        due = self.reduce == "mean" and self._n_looks % _LOOKS_PER_FETCH == 0
        return self.fetch() if channel.has_failed or due else Recorded(channel.whole())

    def _begun(self) -> Channel:
        if self._channel is None:
            raise EngineError("the capture has not begun")
        return self._channel

    def _load(self, given: Any) -> Sums:
        sums: Sums = given if self._in_process else Sums.from_tensors(take(given))
        return sums
