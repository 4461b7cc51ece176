"""Our worker with a clock: how long each of its parts, and vLLM's, takes in the engine's process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from vllm.platforms import current_platform

if current_platform.is_cpu():
    from easysteer_data.engine.worker_cpu import CPUTapWorker as TapWorker
else:
    from easysteer_data.engine.worker_gpu import GPUTapWorker as TapWorker

_seconds: dict[str, float] = defaultdict(float)
_calls: dict[str, int] = defaultdict(int)


def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            _seconds[name] += time.perf_counter() - begun
            _calls[name] += 1

    return run


class CountedWorker(TapWorker):  # type: ignore[misc, valid-type]
    """Times the recorder, the model runner, the scheduler, and how long outputs are waited for."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Load and tap the model, then put the clock on."""
        result = super().load_model(*args, **kwargs)
        from vllm.v1.core.sched.scheduler import Scheduler

        from easysteer_data.engine.outlet import Outlet
        from easysteer_data.engine.recorder import Recorder
        from easysteer_data.engine.requests import RunningRequests
        from easysteer_data.engine.slots import StepSlots

        recorder, runner = self._kit.recorder, self.model_runner
        owners: list[tuple[Any, str, str]] = [
            (recorder, "begin_step", "ours: begin"),
            (Recorder, "_place", "ours: place"),
            (StepSlots, "place", "ours: place, slots"),
            (RunningRequests, "wanted", "ours: place, wanted"),
            (Outlet, "reserve", "ours: place, reserve"),
            (recorder, "end_step", "ours: end"),
            (runner, "execute_model", "vllm: execute, with ours: place"),
            (runner, "sample_tokens", "vllm: sample"),
            (Scheduler, "schedule", "vllm: schedule"),
            (Scheduler, "update_from_output", "vllm: update"),
        ]
        with suppress(ImportError):  # the V2 runner's
            from vllm.v1.worker.gpu.async_utils import AsyncOutput

            owners.append((AsyncOutput, "get_output", "vllm: wait for the GPU"))
        for owner, method, name in owners:
            setattr(owner, method, _timed(name, getattr(owner, method)))
        return result

    def bench_clock(self) -> dict[str, list[float]]:
        """Milliseconds a call and calls of each part since the last answer."""
        found = {name: [round(1000 * _seconds[name] / n, 3), n] for name, n in _calls.items()}
        _seconds.clear()
        _calls.clear()
        return found
