"""An engine for one capture, opened when it is first needed and closed at the end, its memory given back."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import Any, Self

from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.engine.open import close_llm, open_llm
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import StreamShape
from easysteer_data.errors import SettingsError
from easysteer_data.types import Stream


class EngineLease:
    """The engine of a capture, as a context; a run that is found finished never opens one.

    Args:
        plan: the capture.
        llm: an engine that is open already and stays open; None = open one.
    """

    def __init__(self, plan: CapturePlan, llm: Any = None) -> None:
        self._plan = plan
        self._given = llm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__dict__.pop("engine", None)
        llm = self.__dict__.pop("llm", None)
        if llm is not None and llm is not self._given:
            close_llm(llm)

    @cached_property
    def llm(self) -> Any:
        """The vLLM engine."""
        if self._given is not None:
            return self._given
        settings = self._plan.settings
        return open_llm(
            settings.model.path,
            streams=settings.capture.streams,
            layers=settings.capture.layers,
            in_process=settings.engine.in_process,
            dtype=settings.model.dtype,
            max_model_len=self._plan.max_model_len,
            **settings.engine.llm_kwargs(),
        )

    @cached_property
    def engine(self) -> TappedEngine:
        """The engine as a capture sees it."""
        return TappedEngine(self.llm)

    def shapes(self) -> dict[Stream, StreamShape]:
        """The streams' shapes: those of the plan, or where it can't tell them the engine's own.

        Raises:
            SettingsError: the model lacks a stream; names the architecture.
        """
        capture = self._plan.settings.capture
        return self._plan.shapes() or {
            stream: self.engine.shape(stream, self._layers(stream)) for stream in capture.streams
        }

    def _layers(self, stream: Stream) -> list[int]:
        """The asked layers that have the stream; some may lack it, as dense ones among experts."""
        there = self.engine.shape(stream, None).layer_ids
        asked = self._plan.settings.capture.layers
        chosen = [layer_id for layer_id in there if asked is None or layer_id in asked]
        if not chosen:
            raise SettingsError(f"{stream}: none of the layers {asked} has it; {list(there)} have")
        return chosen

    def layouts(self) -> dict[Stream, dict[str, int]]:
        """How rows divide into heads, for the streams that do; alike in all layers."""
        if self._plan.shapes() is not None:
            return {}
        layouts: dict[Stream, dict[str, int]] = {}
        for stream in self._plan.settings.capture.streams:
            of_layers = list(self.engine.layouts(stream).values())
            if any(layout != of_layers[0] for layout in of_layers):
                raise SettingsError(f"{stream}: layers of different layouts; give capture.layers of one kind")
            if of_layers:
                layouts[stream] = of_layers[0]
        return layouts
