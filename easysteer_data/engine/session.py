"""The driver's side of a capture: starts the workers' recorders, takes their rows, always stops them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, get_args

import torch

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.channel import Channel, Mailboxes, join_widths, mailboxes_of
from easysteer_data.engine.plain import attach
from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.spool import take
from easysteer_data.engine.wire import DTYPES, SPLIT_STREAMS, StartOrder, StreamShape, Sums, WorkerFacts
from easysteer_data.errors import EngineError, SettingsError, UnsupportedEngineError
from easysteer_data.types import Reduce, Stream

# Bytes of rows between a worker and the driver, where the caller does not say.
_MAILBOX_BYTES = {"cpu": 2**27, "cuda": 2**32}

_busy: set[int] = set()


class TappedEngine:
    """A vLLM `LLM` whose workers answer our calls; a plain one is tapped where that is possible.

    Attributes:
        llm: the engine.
        facts: what each worker said, by rank.

    Args:
        llm: the engine.
        stream: the stream to tap in a plain engine.

    Raises:
        RuntimeError: layers are spread over several workers.
        UnsupportedEngineError: the engine can't be tapped, or decodes speculatively.
    """

    def __init__(self, llm: Any, stream: Stream = "hidden_states") -> None:
        self.llm = llm
        check_adapters(llm)
        self.facts = self._ask_facts(stream)
        check_workers(self.facts)

    def _ask_facts(self, stream: Stream) -> list[WorkerFacts]:
        try:
            answers = self.llm.collective_rpc("easysteer_facts")
        except Exception as error:  # the methods are missing: vLLM's error differs from executor to executor
            if type(error).__name__ == "EngineDeadError":
                raise EngineError("the engine has died; its log says why") from error
            answers = []
        facts = [WorkerFacts(**answer) for answer in answers]
        if not facts or (facts[0].plain and stream not in facts[0].streams):
            attach(self.llm, stream)
            facts = [WorkerFacts(**answer) for answer in self.llm.collective_rpc("easysteer_facts")]
        return sorted(facts, key=lambda fact: fact.rank)

    @property
    def max_num_seqs(self) -> int:
        """Prompts in one step at most."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)

    def shape(
        self, stream: Stream, layers: Sequence[int] | None, dtype: str | torch.dtype | None = None
    ) -> StreamShape:
        """Check what is asked of a stream against what is tapped.

        Args:
            stream: the stream.
            layers: its layers, None = all that are tapped.
            dtype: dtype of the rows, None = the one in which they are tapped: the model's, float32 for
                router logits.

        Raises:
            SettingsError: the stream is not tapped, a layer is not there, or no row can have the dtype; names
                what is possible.
        """
        first = self.facts[0]
        if stream in first.absent:
            missing = {"router_logits": "no MoE router", "attention_heads": "no attention layer"}
            raise SettingsError(f"{first.architecture} has {missing[stream]}, so it has no {stream}")
        if stream not in first.streams:
            raise SettingsError(
                f"stream {stream!r} is not tapped in this engine, only {', '.join(first.streams)}; "
                f"open it with `streams=({stream!r},)`"
            )
        there = list(first.streams[stream]["layer_ids"])
        asked = there if layers is None else sorted(set(layers))
        missing_ids = [layer_id for layer_id in asked if layer_id not in there]
        if missing_ids or not asked:
            raise SettingsError(
                f"layers {missing_ids or '[]'} are not hooked; this engine has layers {there[0]} to "
                f"{there[-1]} ({len(there)} in all)"
            )
        n_parts = len(self.facts) if stream in SPLIT_STREAMS else 1
        tapped = first.streams[stream]
        return StreamShape(
            tuple(asked), n_parts * int(tapped["width"]), check_dtype(dtype) or str(tapped["dtype"])
        )

    def layouts(self, stream: Stream) -> dict[int, dict[str, int]]:
        """Per layer {num_heads, head_size} of attention heads, of all ranks; empty for others."""
        return {
            int(layer_id): {
                "num_heads": layout["num_heads"] * len(self.facts),
                "head_size": layout["head_size"],
            }
            for layer_id, layout in self.facts[0].streams[stream]["layouts"].items()
        }


def check_adapters(llm: Any) -> None:
    """Refuse an engine that puts a LoRA adapter on requests by itself: their rows would not be the model's.

    Raises:
        UnsupportedEngineError: names the argument to leave out.
    """
    lora = getattr(llm.llm_engine.vllm_config, "lora_config", None)
    if getattr(lora, "default_mm_loras", None):
        raise UnsupportedEngineError(
            "this engine puts LoRA adapters on multimodal prompts by itself; open it without "
            "default_mm_loras, or merge the adapter first"
        )


def check_workers(facts: Sequence[WorkerFacts]) -> None:
    """Refuse what can't be captured right: layers spread over workers, drafts that are thrown away.

    Raises:
        RuntimeError: there are more workers than tensor-parallel ranks.
        UnsupportedEngineError: the engine decodes speculatively.
    """
    if len(facts) != facts[0].n_tensor_ranks or facts[0].n_pipeline_ranks > 1:
        raise RuntimeError(f"capture expects a single worker, got {len(facts)} RPC results")
    if facts[0].speculative:
        raise UnsupportedEngineError(
            "this engine decodes speculatively: rejected draft tokens have rows of a text that is not the "
            "prompt's; open it without speculative_config"
        )


class CaptureSession:
    """One capture on an engine: a context in which the engine's tagged requests are recorded.

    Attributes:
        steps_per_fetch: engine steps after which `fetch` is due, also while no prompt finishes: bounds how
            long a worker runs on after an error of ours.

    Args:
        engine: the engine.
        shapes: stream -> what is captured of it, as checked by `TappedEngine.shape`.
        reduce: "last" or "mean" of each prompt's selected rows, None = all of them.
        budget_rows: rows of a layer that may be recorded, None = no bound.
        buffer_bytes: shared memory of each worker for rows on their way, None = 128 MiB, on a GPU 4 GiB; less
            where there is less. It stays for the engine's next capture.
        block_prompts: how many prompts' rows, counted from the first, are wanted together; see StartOrder.
    """

    steps_per_fetch = 16
    in_place = ("cuda",)  # devices whose rows are left where they arrive; see `channel.py`

    def __init__(
        self,
        engine: TappedEngine,
        shapes: Mapping[Stream, StreamShape],
        reduce: Reduce | None = None,
        budget_rows: int | None = None,
        buffer_bytes: int | None = None,
        block_prompts: int | None = None,
    ) -> None:
        if reduce not in (None, *get_args(Reduce)):
            raise SettingsError(f"reduce is {reduce!r}; choose last, mean or None")
        self.shapes = shapes
        self.reduce = reduce
        self._facts = engine.facts
        self._budget_rows = budget_rows
        self._block_prompts = block_prompts
        self._mailbox_bytes = buffer_bytes or _MAILBOX_BYTES[engine.facts[0].device]
        self._llm = engine.llm
        self._in_process = all(fact.pid == os.getpid() for fact in engine.facts)
        self._channel: Channel | None = None

    def __enter__(self) -> Self:
        if id(self._llm) in _busy:
            raise EngineError("a capture is already running on this engine; captures can't be nested")
        _busy.add(id(self._llm))
        try:
            mailboxes = mailboxes_of(self._llm, len(self._facts), self._mailbox_bytes)
            order = self._order(mailboxes)
            shapes = [BlockShape.of(order, self._widths(fact)) for fact in self._facts]
            order = replace(order, block_rows=self._block_rows(mailboxes, shapes))
            channel = Channel(mailboxes, shapes, self._look, in_place=self._facts[0].device in self.in_place)
            self._llm.collective_rpc("easysteer_start", args=(order.to_wire(),))
            self._channel = channel.__enter__()
        except BaseException:
            _busy.discard(id(self._llm))
            raise
        return self

    def _order(self, mailboxes: Mailboxes) -> StartOrder:
        return StartOrder(
            layers={stream: shape.layer_ids for stream, shape in self.shapes.items()},
            dtypes={stream: shape.dtype for stream, shape in self.shapes.items()},
            mailboxes=str(mailboxes.folder),
            mailbox_bytes=mailboxes.n_bytes,
            block_rows=1,
            block_prompts=self._block_prompts,
            reduce=self.reduce,
            budget_rows=self._budget_rows,
            spool=None if self._in_process else str(mailboxes.folder),
        )

    def _block_rows(self, mailboxes: Mailboxes, shapes: Sequence[BlockShape]) -> int:
        """Rows in one block at most, the same for all ranks, so that their blocks fit together."""
        box_bytes = mailboxes.of_rank[0].box_bytes
        n_rows = min(shape.max_rows(box_bytes) for shape in shapes)
        if not n_rows:
            raise EngineError(
                f"a row of all layers does not fit a box of {box_bytes:,} bytes of shared memory in "
                f"{mailboxes.folder}: give buffer_bytes= or make room there, or ask for fewer layers"
            )
        return n_rows

    def _look(self) -> None:
        """See whether the engine is alive, while its rows are waited for."""
        self._llm.collective_rpc("easysteer_facts")

    def _widths(self, fact: WorkerFacts) -> dict[Stream, int]:
        """What a rank hands over: the first all streams, others only what they alone have."""
        return {
            stream: int(fact.streams[stream]["width"])
            for stream in self.shapes
            if fact.tensor_rank == 0 or stream in SPLIT_STREAMS
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        chunks = channel.take()
        # The rows come through the mailboxes; the engine is asked only for what does not.
        if self.reduce != "mean" and not channel.has_failed:
            return Recorded(chunks)
        replies = self._llm.collective_rpc("easysteer_fetch")
        for rank, reply in enumerate(replies):
            if reply["error"] is not None:
                raise EngineError(f"recording failed in worker {rank}: {reply['error']}")
        sums = [self._load(reply["sums"]) for reply in replies if reply["sums"] is not None]
        joined = [replace(sums[0], values=join_widths([part.values for part in sums]))] if sums else []
        return Recorded(chunks, joined)

    def look(self) -> Recorded:
        """Return the rows that are there already; waits for none, unless there is an error to fetch."""
        channel = self._begun()
        return self.fetch() if channel.has_failed else Recorded(channel.whole())

    def _begun(self) -> Channel:
        if self._channel is None:
            raise EngineError("the capture has not begun")
        return self._channel

    def _load(self, given: Any) -> Sums:
        sums: Sums = given if self._in_process else Sums.from_tensors(take(given))
        return sums


def check_dtype(dtype: str | torch.dtype | None) -> str | None:
    """Return the dtype's name.

    Raises:
        SettingsError: not one of float32, bfloat16, float16.
    """
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    if name is not None and name not in DTYPES:
        raise SettingsError(f"dtype {name!r} can't hold rows; choose from {', '.join(DTYPES)}")
    return name
