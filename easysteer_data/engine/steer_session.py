"""The driver's side of steering: gives recipes to the workers, keeps steered caches apart, always ends it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from easysteer_data.engine.plain import attach_steering
from easysteer_data.engine.steer_wire import Recipe, recipes_to_wire
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import WorkerFacts
from easysteer_data.errors import EngineError, SettingsError, UnsupportedEngineError

_busy: set[int] = set()


def steerable(engine: TappedEngine) -> tuple[tuple[int, ...], int]:
    """Make the engine ready for steering where it is not, and say what can be steered.

    Returns:
        The layer ids whose outputs can be steered, ascending, and their width.

    Raises:
        UnsupportedEngineError: the engine is not open for steering, or is a pipeline; shows what to change.
    """
    if engine.facts[0].n_pipeline_ranks > 1:
        raise UnsupportedEngineError(
            "steering needs every layer in each worker: open the engine without pipeline_parallel_size"
        )
    steering = engine.facts[0].steering
    if steering is None:
        attach_steering(engine.llm)
        steering = WorkerFacts(**engine.llm.collective_rpc("easysteer_facts")[0]).steering
    if steering is None:
        raise EngineError("the engine's worker did not take steering")
    return tuple(steering["layer_ids"]), int(steering["width"])


class SteerSession:
    """A context in which tagged requests of an engine are steered; without recipes it does nothing.

    Args:
        engine: the engine, for which `steerable` was called.
        recipes: what a request names by its place in this list.
    """

    def __init__(self, engine: TappedEngine, recipes: Sequence[Recipe]) -> None:
        self._llm = engine.llm
        self._recipes = recipes
        self._salt = f"easysteer_data {uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        if not self._recipes:
            return self
        if id(self._llm) in _busy:
            raise EngineError("this engine is already being steered; steering can't be nested")
        _busy.add(id(self._llm))
        try:
            answers = self._llm.collective_rpc("easysteer_steer", args=(recipes_to_wire(self._recipes),))
        except BaseException:
            _busy.discard(id(self._llm))
            raise
        if answers[0] is not None:
            _busy.discard(id(self._llm))
            raise SettingsError(f"steering: {answers[0]}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._recipes:
            return
        _busy.discard(id(self._llm))
        try:
            failures = self._llm.collective_rpc("easysteer_unsteer")
        except Exception as failure:
            if error is None:
                raise
            # What ended the block comes first; that the engine no longer answers may follow from it.
            error.add_note(f"the engine could not be told to stop steering: {failure}")
            return
        if error is None:
            _raise_first(failures)

    def check(self) -> None:
        """Raise EngineError if steering has failed in a worker."""
        if self._recipes:
            _raise_first(self._llm.collective_rpc("easysteer_steer_error"))

    def keep_apart(self, prompt: Any, recipe: int | None) -> Any:
        """A steered prompt with a salt, so that its keys and values are cached for no other request.

        vLLM hashes the salt into the prefix cache's blocks. A steered prompt's own reading of the cache is
        switched off besides (`feed.Sampling.params`): where it is steered may depend on its length.
        """
        if recipe is None:
            return prompt
        if isinstance(prompt, Mapping):
            salts = [prompt["cache_salt"]] if prompt.get("cache_salt") else []
            return {**prompt, "cache_salt": " ".join([*salts, self._salt])}
        name = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
        return {name: prompt, "cache_salt": self._salt}


def _raise_first(failures: Sequence[str | None]) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise EngineError(f"steering failed in worker {rank}: {failure}")
