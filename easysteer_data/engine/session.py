"""The driver's side of a capture: starts the workers' recorders, fetches their chunks, always stops them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

import torch

from easysteer_data.engine.plain import attach
from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.spool import make_spool, remove_spool, take
from easysteer_data.engine.wire import (
    DTYPES,
    SPLIT_STREAMS,
    Chunk,
    StartOrder,
    StreamShape,
    Sums,
    WorkerFacts,
)
from easysteer_data.errors import EngineError, SettingsError, UnsupportedEngineError
from easysteer_data.types import Reduce, Stream

# Engine steps between two fetches while no prompt finishes: bounds how long a worker runs on after an error
# of ours, and with the bytes what it holds.
_MAX_STEPS_PER_FETCH = 16
_MAX_BYTES_PER_FETCH = 256 * 2**20

_busy: set[int] = set()
_Part = TypeVar("_Part", Chunk, Sums)


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

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens, and so rows, in one step at most."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens)

    def layouts(self, stream: Stream) -> dict[int, dict[str, int]]:
        """Per layer {num_heads, head_size} of attention heads, of all ranks; empty for others."""
        return {
            int(layer_id): {
                "num_heads": layout["num_heads"] * len(self.facts),
                "head_size": layout["head_size"],
            }
            for layer_id, layout in self.facts[0].streams[stream]["layouts"].items()
        }


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
        steps_per_fetch: engine steps after which `fetch` is due, also while no prompt finishes.

    Args:
        engine: the engine.
        shapes: stream -> what is captured of it, as checked by `TappedEngine.shape`.
        reduce: "last" or "mean" of each prompt's selected rows, None = all of them.
        budget_rows: rows of a layer that may be recorded, None = no bound.
    """

    def __init__(
        self,
        engine: TappedEngine,
        shapes: Mapping[Stream, StreamShape],
        reduce: Reduce | None = None,
        budget_rows: int | None = None,
    ) -> None:
        if reduce not in (None, *get_args(Reduce)):
            raise SettingsError(f"reduce is {reduce!r}; choose last, mean or None")
        self.shapes = shapes
        self.reduce = reduce
        step_bytes = engine.max_num_batched_tokens * sum(
            len(shape.layer_ids) * shape.width * DTYPES[shape.dtype].itemsize for shape in shapes.values()
        )
        self.steps_per_fetch = max(1, min(_MAX_STEPS_PER_FETCH, _MAX_BYTES_PER_FETCH // step_bytes))
        self._budget_rows = budget_rows
        self._llm = engine.llm
        self._in_process = all(fact.pid == os.getpid() for fact in engine.facts)
        self._spool: Path | None = None

    def __enter__(self) -> Self:
        if id(self._llm) in _busy:
            raise EngineError("a capture is already running on this engine; captures can't be nested")
        _busy.add(id(self._llm))
        try:
            self._spool = None if self._in_process else make_spool()
            spool = None if self._spool is None else str(self._spool)
            layers = {stream: shape.layer_ids for stream, shape in self.shapes.items()}
            dtypes = {stream: shape.dtype for stream, shape in self.shapes.items()}
            order = StartOrder(layers, dtypes, self.reduce, self._budget_rows, spool)
            self._llm.collective_rpc("easysteer_start", args=(order.to_wire(),))
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not self._in_process:
            # Ctrl-C in a terminal goes to the child as well, which then answers no more; where it lives on,
            # the next capture starts its recorder afresh.
            self._leave()
            return
        try:
            self._llm.collective_rpc("easysteer_stop")
        except Exception as failure:
            if error is None:
                raise
            # What ended the block comes first; that the engine no longer answers may follow from it.
            error.add_note(f"the engine could not be told to stop recording: {failure}")
        finally:
            self._leave()

    def _leave(self) -> None:
        _busy.discard(id(self._llm))
        if self._spool is not None:
            remove_spool(self._spool)

    def fetch(self) -> Recorded:
        """Return what was recorded since the last fetch.

        Raises:
            EngineError: the recorder failed in a worker, or the budget of rows is used up.
        """
        replies = self._llm.collective_rpc("easysteer_fetch")
        for rank, reply in enumerate(replies):
            if reply["error"] is not None:
                raise EngineError(f"recording failed in worker {rank}: {reply['error']}")
        chunks = [[self._load(Chunk, given) for given in reply["chunks"]] for reply in replies]
        sums = [self._load(Sums, reply["sums"]) for reply in replies if reply["sums"] is not None]
        return Recorded(
            [join_ranks(parts) for parts in zip(*chunks, strict=True)],
            [replace(sums[0], values=_join_widths([part.values for part in sums]))] if sums else [],
        )

    def _load(self, kind: type[_Part], given: Any) -> _Part:
        part: _Part = given if self._in_process else kind.from_tensors(take(given))
        return part


def join_ranks(chunks: Sequence[Chunk]) -> Chunk:
    """One step's rows from the chunks of all ranks.

    Tensor-parallel ranks compute the same hidden states and router logits, which the first one hands over,
    and each its own attention heads.

    Raises:
        EngineError: the ranks recorded different rows.
    """
    first = chunks[0]
    if any(not torch.equal(first.position, chunk.position) for chunk in chunks[1:]):
        raise EngineError("the workers recorded different rows in one step")
    peaks = dict(first.peaks)
    for stream in SPLIT_STREAMS & peaks.keys():
        peaks[stream] = torch.stack([chunk.peaks[stream] for chunk in chunks]).amax(0)
    return replace(first, values=_join_widths([chunk.values for chunk in chunks]), peaks=peaks)


def _join_widths(parts: Sequence[Mapping[Stream, torch.Tensor]]) -> dict[Stream, torch.Tensor]:
    """The first rank's values, but all ranks' side by side for split streams."""
    return {
        stream: torch.cat([part[stream] for part in parts], dim=-1) if stream in SPLIT_STREAMS else value
        for stream, value in parts[0].items()
    }


def check_dtype(dtype: str | torch.dtype | None) -> str | None:
    """Return the dtype's name.

    Raises:
        SettingsError: not one of float32, bfloat16, float16.
    """
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    if name is not None and name not in DTYPES:
        raise SettingsError(f"dtype {name!r} can't hold rows; choose from {', '.join(DTYPES)}")
    return name
