"""Everything that is added to one vLLM worker: taps, the watch on its runner, a recorder.

Built by our own worker classes before the first trace (`worker.py`), or on a plain engine's (`plain.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from easysteer_data.engine.geometry import watch_steps
from easysteer_data.engine.lane import lane_for
from easysteer_data.engine.recorder import Recorder
from easysteer_data.engine.slots import StepSlots
from easysteer_data.engine.steer_tables import SteerTables
from easysteer_data.engine.steerer import Steerer
from easysteer_data.engine.taps import TapGroup, TapPoint, find_blocks, find_points
from easysteer_data.engine.wire import StartOrder, WorkerFacts
from easysteer_data.errors import SettingsError, UnsupportedEngineError
from easysteer_data.types import Stream


class TapKit:
    """Taps on one worker; knows it by its `model_runner`, `vllm_config`, `device` and `rank`."""

    def __init__(self, worker: Any, *, plain: bool = False) -> None:
        self._worker = worker
        self._plain = plain
        runner = worker.model_runner
        lane = lane_for(worker.device, runner.max_num_tokens)
        self._slots = StepSlots(runner.max_num_tokens, worker.device, lane)
        self._groups: dict[Stream, TapGroup] = {}
        self._absent: list[Stream] = []
        n_tensor_ranks = worker.vllm_config.parallel_config.tensor_parallel_size
        self.steerer: Steerer | None = None
        self.recorder = Recorder(self._groups, self._slots, lane, worker.rank % n_tensor_ranks)
        self._runner_kind = watch_steps(runner, self.recorder.place_rows)

    def add(self, streams: Sequence[Stream], layers: Sequence[int] | None) -> None:
        """Tap the streams at these layers, None = all; a stream that is tapped already is left as it is."""
        runner = self._worker.model_runner
        hidden_size = int(runner.model_config.get_hidden_size())
        for stream in streams:
            if stream in self._groups:
                continue
            model = runner.get_model()
            blocks, all_points = find_blocks(model), find_points(model, stream, hidden_size)
            points = _of_layers(all_points, self._own(layers, blocks), stream, blocks)
            if points:
                # Routers may give float32 in a bfloat16 model; their rows are narrow enough to keep it.
                dtype = torch.float32 if stream == "router_logits" else runner.model_config.dtype
                self._groups[stream] = TapGroup(points, self._slots.n_slots, dtype, self._slots.slot_map)
            elif not all_points and stream not in self._absent:
                self._absent.append(stream)

    def _own(self, layers: Sequence[int] | None, blocks: Collection[int]) -> Sequence[int] | None:
        """The layers that may be asked of this worker: of a pipeline's, those of its stage."""
        if layers is None or self._worker.vllm_config.parallel_config.pipeline_parallel_size == 1:
            return layers
        return [layer_id for layer_id in layers if layer_id in blocks]

    def add_steering(self) -> None:
        """Make every block's output steerable, once."""
        if self.steerer is not None:
            return
        runner = self._worker.model_runner
        points = find_points(runner.get_model(), "hidden_states", int(runner.model_config.get_hidden_size()))
        self.steerer = Steerer(SteerTables(points, runner.max_num_tokens, self._worker.device))
        watch_steps(runner, self.steerer.place)

    def run_step(self, execute_model: Callable[[Any], Any], scheduler_output: Any) -> Any:
        """Run one step of the engine; its rows are taken here only where nothing is sampled after it."""
        self.recorder.begin_step(scheduler_output)
        if self.steerer is not None:
            self.steerer.begin_step(scheduler_output)
        output = execute_model(scheduler_output)
        if output is not None:
            self.recorder.end_step()
        return output

    def run_sampling(self, sample_tokens: Callable[[Any], Any], grammar_output: Any) -> Any:
        """Sample a step's tokens, then take its rows: vLLM waits for the tokens, so they go out first."""
        output = sample_tokens(grammar_output)
        self.recorder.end_step()
        return output

    def facts(self) -> dict[str, Any]:
        """Say what is tapped here; see WorkerFacts."""
        config, rank = self._worker.vllm_config, self._worker.rank
        n_tensor_ranks = config.parallel_config.tensor_parallel_size
        return WorkerFacts(
            rank=rank,
            tensor_rank=rank % n_tensor_ranks,
            n_tensor_ranks=n_tensor_ranks,
            n_pipeline_ranks=config.parallel_config.pipeline_parallel_size,
            pid=os.getpid(),
            runner=self._runner_kind,
            dtype=str(self._worker.model_runner.model_config.dtype).removeprefix("torch."),
            device=self._worker.device.type,
            speculative=config.speculative_config is not None,
            architecture=type(self._worker.model_runner.get_model()).__name__,
            plain=self._plain,
            absent=list(self._absent),
            streams={
                stream: {
                    "layer_ids": list(g.layer_ids),
                    "width": g.width,
                    "dtype": str(g.rows.dtype).removeprefix("torch."),
                    "layouts": g.layouts,
                }
                for stream, g in self._groups.items()
            },
            steering=None
            if self.steerer is None
            else {"layer_ids": list(self.steerer.tables.layer_ids), "width": self.steerer.tables.width},
        ).to_wire()

    def start(self, order: dict[str, Any]) -> None:
        """Begin to record."""
        self.recorder.start(StartOrder.from_wire(order), self._worker.rank)

    def fetch(self) -> dict[str, Any]:
        """Hand over what does not go through the mailbox: sums and errors."""
        return self.recorder.fetch(self._worker.rank)

    def stop(self) -> None:
        """Stop recording."""
        self.recorder.stop()

    def steer(self, recipes: Sequence[dict[str, Any]]) -> str | None:
        """Begin to steer; return what is wrong with the recipes, None if nothing is."""
        if self.steerer is None:
            raise UnsupportedEngineError("this worker is not ready for steering")
        return self.steerer.start(recipes)

    def steer_error(self) -> str | None:
        """What went wrong since `steer`, None if nothing did."""
        return None if self.steerer is None else self.steerer.error

    def unsteer(self) -> str | None:
        """Stop steering; return what went wrong since `steer`, None if nothing did."""
        return None if self.steerer is None else self.steerer.stop()


def _of_layers(
    points: list[TapPoint], layers: Sequence[int] | None, stream: str, blocks: Collection[int]
) -> list[TapPoint]:
    """The points of the asked layers; some blocks may lack the stream, as dense ones among experts do."""
    if layers is None:
        return points
    missing = sorted(set(layers) - set(blocks))
    if missing:
        raise SettingsError(f"{stream}: no layers {missing}; the model has {sorted(blocks)}")
    chosen = [point for point in points if point.layer_id in layers]
    if points and layers and not chosen:
        raise SettingsError(
            f"{stream}: none of the layers {sorted(layers)} has it; {[p.layer_id for p in points]} have"
        )
    return chosen
