"""The driver's side of a capture: starts the workers' recorders, fetches their chunks, always stops them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from easysteer_data.engine.open import tap_arguments
from easysteer_data.engine.spool import make_spool, read_chunk, remove_spool
from easysteer_data.engine.wire import DTYPES, Chunk, StartOrder, StreamShape, WorkerFacts
from easysteer_data.errors import EngineError, SettingsError, UnsupportedEngineError
from easysteer_data.types import Stream

_busy: set[int] = set()


class TappedEngine:
    """A vLLM `LLM` whose workers answer our calls.

    Attributes:
        llm: the engine.
        facts: what each worker said, by rank.
    """

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.facts = [WorkerFacts(**fact) for fact in self._ask_facts()]
        if any(fact.n_pipeline_ranks > 1 for fact in self.facts) or len(self.facts) > 1:
            raise RuntimeError(f"capture expects a single worker, got {len(self.facts)} RPC results")

    def _ask_facts(self) -> list[dict[str, Any]]:
        try:
            facts: list[dict[str, Any]] = self.llm.collective_rpc("easysteer_facts")
        except Exception as error:
            arguments = ", ".join(f"{name}={value!r}" for name, value in tap_arguments().items())
            raise UnsupportedEngineError(
                "this engine was opened without our worker; open it with "
                f"`easysteer_data.open_llm(model, ...)` or add to your LLM(...): {arguments}"
            ) from error
        return facts

    @property
    def dtype(self) -> str:
        """The model's dtype, as in "float32"."""
        return self.facts[0].dtype

    @property
    def max_num_seqs(self) -> int:
        """Prompts in one step at most."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)

    def shape(self, stream: Stream, layers: Sequence[int] | None) -> StreamShape:
        """Check the asked layers, None = all, against the tapped ones.

        Raises:
            SettingsError: the stream is not tapped, or a layer is not there; names what is.
        """
        if stream not in self.facts[0].streams:
            raise SettingsError(
                f"stream {stream!r} is not tapped in this engine, only {', '.join(self.facts[0].streams)}; "
                f"open it with `streams=({stream!r},)`, if the model has such a stream"
            )
        tapped = self.facts[0].streams[stream]
        there = list(tapped["layer_ids"])
        asked = there if layers is None else sorted(set(layers))
        missing = [layer_id for layer_id in asked if layer_id not in there]
        if missing or not asked:
            raise SettingsError(
                f"layers {missing or '[]'} are not hooked; this engine has layers {there[0]} to {there[-1]} "
                f"({len(there)} in all)"
            )
        return StreamShape(tuple(asked), int(tapped["width"]))

    def layouts(self, stream: Stream) -> dict[int, dict[str, int]]:
        """Per layer {num_heads, head_size} of attention heads, empty for other streams."""
        return {int(k): dict(v) for k, v in self.facts[0].streams[stream]["layouts"].items()}


class CaptureSession:
    """One capture on an engine: a context in which the engine's tagged requests are recorded.

    Args:
        engine: the engine.
        shapes: stream -> what is captured of it, as checked by `TappedEngine.shape`.
        dtype: storage dtype of the rows, None = the model's.
    """

    def __init__(
        self, engine: TappedEngine, shapes: Mapping[Stream, StreamShape], dtype: str | torch.dtype | None
    ) -> None:
        self.shapes = shapes
        self.dtype = check_dtype(dtype) or engine.dtype
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
            order = StartOrder(layers, self.dtype, spool)
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
        try:
            self._llm.collective_rpc("easysteer_stop")
        finally:
            self._leave()

    def _leave(self) -> None:
        _busy.discard(id(self._llm))
        if self._spool is not None:
            remove_spool(self._spool)

    def fetch(self) -> list[Chunk]:
        """Return the chunks since the last fetch.

        Raises:
            EngineError: the recorder failed in a worker; holds the worker's traceback.
        """
        (reply,) = self._llm.collective_rpc("easysteer_fetch")
        if reply["error"] is not None:
            raise EngineError(f"recording failed in the worker:\n{reply['error']}")
        chunks = reply["chunks"]
        return list(chunks) if self._in_process else [read_chunk(path) for path in chunks]


def check_dtype(dtype: str | torch.dtype | None) -> str | None:
    """Return the dtype's name.

    Raises:
        SettingsError: not one of float32, bfloat16, float16.
    """
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    if name is not None and name not in DTYPES:
        raise SettingsError(f"dtype {name!r} can't hold rows; choose from {', '.join(DTYPES)}")
    return name
