"""Keeps an engine busy: puts tagged prompts in without draining it, and yields requests as they finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from easysteer_data.engine.wire import RequestTag
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.select import SelectSpec

_OURS = ("extra_args", "skip_reading_prefix_cache", "max_tokens", "skip_clone")
_PLAIN = (bool, int, float, str)
_AT_ONCE = 32  # the engine begins with these while the next ones are read and put in
_GROWTH = 8  # what a pipeline runs grows by an eighth of it between two steps, or by as many as these


@dataclass(frozen=True, slots=True)
class Sampling:
    """How each prompt is run.

    Attributes:
        max_tokens: 1 = the prompt's forward pass only.
        options: further arguments of SamplingParams.
        recompute: compute every prompt whole, so that the prefix cache stands in for no row; a steered one
            always is.
    """

    max_tokens: int
    options: Mapping[str, Any]
    recompute: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SettingsError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if "lora_request" in self.options:
            raise SettingsError("lora_request: rows under a LoRA adapter are not supported; merge it first")
        taken = [name for name in _OURS if name in self.options]
        if taken:
            raise SettingsError(f"{', '.join(taken)}: set by the capture itself; leave it out")
        if self.options.get("n", 1) != 1:
            raise SettingsError(f"n={self.options['n']}: capture follows one completion per prompt; use n=1")

    def params(self, *, steered: bool) -> Any:
        """Return the SamplingParams of all requests, or of all that are steered, without their tags."""
        from vllm import SamplingParams

        options = {"temperature": 0.0, **self.options}
        return SamplingParams(
            max_tokens=self.max_tokens,
            # Each request has a copy of its own already, and vLLM takes long for a deep one. Where there is
            # something in it that requests would share, vLLM makes them all the same.
            skip_clone=all(isinstance(value, _PLAIN) for value in options.values()),
            # None leaves it to vLLM, which recomputes where prompt_logprobs are asked for.
            skip_reading_prefix_cache=True if self.recompute or steered else None,
            **options,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to be run.

    Attributes:
        tag: index of the prompt, which its rows carry.
        prompt: what `LLM.generate` takes.
        select: which of its rows are wanted, None = all.
        recipe: place of the recipe that steers it, None = not steered.
    """

    tag: int
    prompt: Any
    select: SelectSpec | None
    recipe: int | None = None


class Feed:
    """Runs prompts through an engine.

    Args:
        llm: the engine.
        sampling: how each prompt is run.
        window: prompts that the engine holds at most; None = no bound.
    """

    def __init__(self, llm: Any, sampling: Sampling, window: int | None = None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._window = window
        self._is_paced = _makes_batches_in_turn(llm) and sampling.max_tokens > 1
        self._running: dict[str, int] = {}  # outer request id -> tag
        self._params: dict[bool, Any] = {}  # steered or not -> SamplingParams

    def run(self, requests: Iterable[Request | None]) -> Iterator[list[tuple[int, Any]]]:
        """Yield, engine step by engine step, the (tag, RequestOutput) of the requests that finished with it.

        A None among the requests says that no further one is there yet: they are asked for again after the
        next step, and the run ends where the engine has nothing left to do.

        An exception, or a consumer that stops, aborts what is still running, so the engine stays usable.
        """
        engine = self._llm.llm_engine
        if engine.has_unfinished_requests():
            raise EngineError(
                "the engine still has requests of others, whose outputs would be lost; finish them first, "
                "as with llm.wait_for_completion()"
            )
        waiting = iter(requests)
        try:
            self._fill(waiting)
            while self._running:
                outputs = [output for output in self._llm.llm_engine.step() if output.finished]
                ours = [output for output in outputs if output.request_id in self._running]
                yield [(self._running.pop(output.request_id), output) for output in ours]
                self._fill(waiting, n_finished=len(ours))
        except BaseException:
            with suppress(Exception):  # of an engine that died, or that Ctrl-C ended
                self._abort()
            raise

    def _abort(self) -> None:
        """Abort all that is left: it is ours, also what an interrupted enqueue() put in and never told of."""
        engine = self._llm.llm_engine
        left = list(engine.output_processor.request_states)
        if left:
            engine.abort_request(left, internal=True)
        self._running.clear()

    def _fill(self, waiting: Iterator[Request | None], n_finished: int = 0) -> None:
        bounds = [None if self._window is None else self._window - len(self._running)]
        if self._is_paced:
            bounds.append(n_finished + max(_AT_ONCE, len(self._running) // _GROWTH))
        room = min((bound for bound in bounds if bound is not None), default=None)
        ready = _until_none(islice(waiting, room))
        while requests := list(islice(ready, _AT_ONCE)):
            self._put(requests)

    def _put(self, requests: Sequence[Request]) -> None:
        wires = {id(r.select): r.select.to_wire() for r in requests if r.select is not None}
        tags = [RequestTag(r.tag, wires.get(id(r.select)), r.recipe) for r in requests]
        params = [self._params_of(tag) for tag in tags]
        try:
            ids = self._llm.enqueue([r.prompt for r in requests], params, use_tqdm=False)
        except Exception as error:  # vLLM 0.32 has an error class of its own for it
            raise self._refusal(requests, params, error) from error
        for internal_id, tag in zip(ids, tags, strict=True):
            # An internal id is the outer id, a number, plus "-" and 8 hex digits; outputs carry the outer id.
            self._running[internal_id.partition("-")[0]] = tag.prompt

    def _params_of(self, tag: RequestTag) -> Any:
        """SamplingParams with the tag; made once and copied, since to make them takes vLLM long."""
        steered = tag.recipe is not None
        if steered not in self._params:
            self._params[steered] = self._sampling.params(steered=steered)
        params = copy(self._params[steered])
        params.extra_args = tag.to_extra_args()
        return params

    def _refusal(self, requests: Sequence[Request], params: Sequence[Any], error: Exception) -> SettingsError:
        """Find which prompt vLLM refuses: it names none. What goes in meanwhile is aborted as the rest."""
        for request, one in zip(requests, params, strict=True):
            try:
                self._llm.enqueue([request.prompt], [one], use_tqdm=False)
            except Exception as refused:
                return SettingsError(f"prompt {request.tag}: vLLM refuses it: {refused}")
        return SettingsError(f"vLLM refuses the prompts: {error}")


def _makes_batches_in_turn(llm: Any) -> bool:
    """Whether the engine is a pipeline, which is as fast as its batches are even.

    What has come when a batch is begun is in it, for as long as it generates: of prompts that are put in all
    at once, nearly all are in one batch. So a few between two steps, and as many as have finished.
    """
    return int(llm.llm_engine.vllm_config.parallel_config.pipeline_parallel_size) > 1


def _until_none(requests: Iterator[Request | None]) -> Iterator[Request]:
    for request in requests:
        if request is None:
            return
        yield request
