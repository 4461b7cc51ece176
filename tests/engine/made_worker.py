"""A worker without vLLM: real taps, slots and recorder, over modules that pass on what a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from easysteer_data.engine.lane import Lane
from easysteer_data.engine.recorder import Recorder
from easysteer_data.engine.slots import StepSlots
from easysteer_data.engine.taps import TapGroup, TapPoint
from easysteer_data.engine.wire import WorkerFacts

ONE = WorkerFacts(
    rank=0,
    tensor_rank=0,
    n_tensor_ranks=1,
    n_pipeline_ranks=1,
    pid=1,
    runner="V1",
    dtype="float32",
    device="cpu",
    speculative=False,
    architecture="LlamaForCausalLM",
    plain=False,
    absent=[],
    streams={},
)


class Worker:
    """One rank's taps and recorder, with the layers that it has as plain modules."""

    def __init__(self, layer_ids: Sequence[int], n_heads: int, tensor_rank: int) -> None:
        lane = Lane(torch.device("cpu"))
        self.slots = StepSlots(64, torch.device("cpu"), lane)
        self.layers = {i: torch.nn.Identity() for i in layer_ids}
        self.heads = {i: torch.nn.Identity() for i in layer_ids}
        groups = {}
        if layer_ids:
            for stream, modules, width in (
                ("hidden_states", self.layers, 3),
                ("attention_heads", self.heads, n_heads),
            ):
                points = [TapPoint(i, module, width, "output") for i, module in modules.items()]
                groups[stream] = TapGroup(points, self.slots.n_slots, torch.float32, self.slots.slot_map)
        self.groups: Any = groups
        self.recorder = Recorder(self.groups, self.slots, lane, tensor_rank)

    def facts(self, rank: int, n_tensor: int, n_stages: int) -> WorkerFacts:
        streams = {
            stream: {"layer_ids": group.layer_ids, "width": group.width, "dtype": "float32", "layouts": {}}
            for stream, group in self.groups.items()
        }
        return replace(
            ONE,
            rank=rank,
            tensor_rank=rank % n_tensor,
            n_tensor_ranks=n_tensor,
            n_pipeline_ranks=n_stages,
            streams=streams,
        )
