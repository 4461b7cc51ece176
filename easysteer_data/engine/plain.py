"""Taps a plain `LLM` that the user opened without our worker: possible where the engine is in this process.

Hooks that come after a model was compiled fire only in its eager forward, so while a capture is on each step
is sent there. CUDA graphs never call the model: such engines are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from easysteer_data.engine.kit import TapKit
from easysteer_data.engine.open import tap_arguments
from easysteer_data.errors import UnsupportedEngineError
from easysteer_data.types import Stream

_METHODS = ("facts", "start", "fetch", "stop", "steer", "steer_error", "unsteer")


def attach(llm: Any, stream: Stream) -> None:
    """Tap all layers of a stream, and give the worker the methods that our own classes have.

    Raises:
        UnsupportedEngineError: the engine runs in a child process or replays CUDA graphs; shows what to add.
    """
    _check_reach(llm, "our worker", "", tap_arguments((stream,)))
    llm.collective_rpc(partial(_attach_to_worker, stream=stream))


def attach_steering(llm: Any) -> None:
    """Make the blocks of a tapped engine steerable; where it is compiled, steered steps run eagerly.

    Raises:
        UnsupportedEngineError: the engine runs in a child process or replays CUDA graphs; shows what to add.
    """
    _check_reach(llm, "steering", "steering=True, ", tap_arguments(steering=True))
    llm.collective_rpc(_add_steering)


def _check_reach(llm: Any, lacking: str, option: str, arguments: Mapping[str, Any]) -> None:
    to_add = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    remedy = f"open it with `easysteer_data.open_llm(model, {option}...)` or add to your LLM(...): {to_add}"
    if type(llm.llm_engine.engine_core).__name__ != "InprocClient":
        raise UnsupportedEngineError(
            f"this engine was opened without {lacking} and runs in a child process, out of reach; {remedy}"
        )
    config = llm.llm_engine.vllm_config.compilation_config
    if getattr(config.cudagraph_mode, "name", "NONE") != "NONE":
        raise UnsupportedEngineError(
            f"this engine was opened without {lacking} and replays CUDA graphs, which no hook sees; "
            f"{remedy}, or enforce_eager=True"
        )


def _attach_to_worker(worker: Any, stream: Stream) -> None:
    kit = getattr(worker, "_easysteer_kit", None)
    if kit is None:
        kit = TapKit(worker, plain=True)
        worker._easysteer_kit = kit
        worker.execute_model = partial(kit.run_step, worker.execute_model)
        worker.sample_tokens = partial(kit.run_sampling, worker.sample_tokens)
        for name in _METHODS:
            setattr(worker, f"easysteer_{name}", getattr(kit, name))
        worker.model_runner.get_model().register_forward_pre_hook(partial(_go_eager, kit))
    kit.add((stream,), None)


def _add_steering(worker: Any) -> None:
    kit = getattr(worker, "_easysteer_kit", None)
    if kit is None:  # our own worker; a plain one's model has the hook already
        kit = worker._kit
        worker.model_runner.get_model().register_forward_pre_hook(partial(_go_eager, kit))
    kit.add_steering()


def _go_eager(kit: TapKit, *_: Any) -> None:
    from vllm.forward_context import get_forward_context, is_forward_context_available

    steering = kit.steerer is not None and kit.steerer.active
    if (kit.recorder.recording or steering) and is_forward_context_available():
        get_forward_context().skip_compiled = True
