"""What is added to vLLM's worker: taps put in before the first trace, and four methods for collective_rpc.

The concrete classes are in `worker_cpu.py` and `worker_gpu.py`; `LLM(worker_cls=...)` names one of them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from easysteer_data.engine.geometry import watch_steps
from easysteer_data.engine.recorder import Recorder
from easysteer_data.engine.taps import TapGroup, find_points
from easysteer_data.engine.wire import KEY, StartOrder, WorkerFacts
from easysteer_data.errors import SettingsError
from easysteer_data.types import STREAMS, Stream


class TapWorkerMixin:
    """Comes before vLLM's Worker among the bases."""

    vllm_config: Any
    model_runner: Any
    device: torch.device
    rank: int
    _recorder: Recorder

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model as vLLM does, then tap it: torch.compile traces it only later."""
        result = super().load_model(*args, **kwargs)  # type: ignore[misc]
        self._tap_model()
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step and take its rows."""
        self._recorder.begin_step(scheduler_output)
        output = super().execute_model(scheduler_output)  # type: ignore[misc]
        self._recorder.end_step()
        return output

    def easysteer_facts(self) -> dict[str, Any]:
        """Say what is tapped here; see WorkerFacts."""
        parallel = self.vllm_config.parallel_config
        facts = WorkerFacts(
            rank=self.rank,
            tensor_rank=self.rank % parallel.tensor_parallel_size,
            n_tensor_ranks=parallel.tensor_parallel_size,
            n_pipeline_ranks=parallel.pipeline_parallel_size,
            pid=os.getpid(),
            runner=self._runner_kind,
            dtype=str(self.model_runner.model_config.dtype).removeprefix("torch."),
            streams=self._stream_facts,
        )
        return facts.to_wire()

    def easysteer_start(self, order: dict[str, Any]) -> None:
        """Begin to record."""
        self._recorder.start(StartOrder.from_wire(order))

    def easysteer_fetch(self) -> dict[str, Any]:
        """Hand over the rows since the last fetch."""
        return self._recorder.fetch(self.rank)

    def easysteer_stop(self) -> None:
        """Stop recording."""
        self._recorder.stop()

    def _tap_model(self) -> None:
        runner = self.model_runner
        options = (self.vllm_config.additional_config or {}).get(KEY, {})
        slot_map = torch.full((runner.max_num_tokens,), -1, dtype=torch.int32, device=self.device)
        groups: dict[Stream, TapGroup] = {}
        hidden_size = int(runner.model_config.get_hidden_size())
        for stream in options.get("streams", STREAMS[:1]):
            points = find_points(runner.get_model(), stream, hidden_size)
            points = _of_layers(points, options.get("layers"), stream)
            if points:
                groups[stream] = TapGroup(points, runner.max_num_tokens, runner.model_config.dtype, slot_map)
        self._recorder = Recorder(groups, slot_map)
        self._runner_kind = watch_steps(runner, self._recorder.place_rows)
        self._stream_facts = {
            stream: {"layer_ids": list(group.layer_ids), "width": group.width, "layouts": group.layouts}
            for stream, group in groups.items()
        }


def _of_layers(points: list[Any], layers: list[int] | None, stream: str) -> list[Any]:
    if layers is None:
        return points
    there = {point.layer_id for point in points}
    missing = sorted(set(layers) - there)
    if missing and points:
        raise SettingsError(f"{stream}: no layers {missing}; the model has {sorted(there)}")
    return [point for point in points if point.layer_id in layers]
