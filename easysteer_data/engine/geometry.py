"""Which token of a step's flat batch belongs to which request: one record for both of vLLM's model runners.

V1: vllm/v1/worker/gpu_model_runner.py (the CPU runner is its child). V2: vllm/v1/worker/gpu/model_runner.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """The flat batch of one forward pass.

    Attributes:
        req_ids: vLLM's internal request ids in batch order.
        starts: int64 [n_requests], position of each request's first token of this step.
        counts: int64 [n_requests], tokens of each request in this step, in the flat batch's order.
        input_ids: int32 [>= n_tokens] on the device, the tokens that the model reads.
    """

    req_ids: list[str]
    starts: np.ndarray
    counts: np.ndarray
    input_ids: torch.Tensor


def watch_steps(runner: Any, on_step: Callable[[Callable[[], StepGeometry]], None]) -> str:
    """Call `on_step` after the runner prepared a real batch's inputs and before its forward pass.

    The method is wrapped on this runner object only; dummy and profiling runs don't pass through it.
    `on_step` gets a function that makes the geometry, so that nothing is read where nothing is recorded.

    Returns:
        "V1" or "V2", the kind of the runner.
    """
    if hasattr(runner, "_prepare_inputs"):
        _wrap(runner, "_prepare_inputs", lambda _result, args: on_step(lambda: _geometry_v1(runner, args[0])))
        return "V1"
    _wrap(runner, "prepare_inputs", lambda result, _args: on_step(lambda: _geometry_v2(result)))
    return "V2"


def _wrap(runner: Any, method: str, after: Callable[[Any, tuple[Any, ...]], None]) -> None:
    original = getattr(runner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        after(result, args or tuple(kwargs.values()))
        return result

    setattr(runner, method, wrapped)


def _geometry_v1(runner: Any, scheduler_output: Any) -> StepGeometry:
    batch = runner.input_batch
    req_ids = list(batch.req_ids)
    scheduled = scheduler_output.num_scheduled_tokens
    return StepGeometry(
        req_ids=req_ids,
        starts=batch.num_computed_tokens_cpu[: len(req_ids)].astype(np.int64),
        counts=np.array([scheduled[req_id] for req_id in req_ids], dtype=np.int64),
        input_ids=runner.input_ids.gpu,
    )


def _geometry_v2(batch: Any) -> StepGeometry:
    n_requests = len(batch.req_ids)
    counts = np.diff(batch.query_start_loc_np[: n_requests + 1]).astype(np.int64)
    return StepGeometry(
        req_ids=list(batch.req_ids),
        starts=batch.num_computed_tokens_np[:n_requests].astype(np.int64),
        counts=counts,
        input_ids=batch.input_ids,
    )
