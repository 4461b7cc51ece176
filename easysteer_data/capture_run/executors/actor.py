"""One actor of a pool: an engine of its own that captures one shard after another into a folder.

Knows no scheduler, no journal and no corpus; whoever calls it does. Each method takes and gives plain dicts.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.executors.engine_line import EngineLine
from easysteer_data.capture_run.executors.messages import (
    Message,
    ShardResult,
    failure_message,
    plan_of,
    shapes_message,
)
from easysteer_data.capture_run.executors.staging import write_staged
from easysteer_data.capture_run.freed_memory import return_freed_memory
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.shards import RunHeader
from easysteer_data.shards.checked_json import JsonRecord
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.shards.shard_files import make_folders, write_shard

_STDERR = Path("/proc/self/fd/2")


class CaptureActor:
    """Captures shards, some at a time: the engine runs on while those before are proven and written."""

    def __init__(self, plan: Message) -> None:
        self._plan = _with_own_workers(plan_of(plan))
        self._lease = EngineLease(self._plan)
        self._line = EngineLine(self._plan, self._lease)

    def begin(self) -> Message:
        """Open the engine; say where the actor and its log are, and what the engine's rows look like."""
        try:
            return self._begin()
        except Exception as error:
            return failure_message(error)

    def capture(self, task: Message, header: Message, place: str) -> Message:
        """Capture one shard.

        Args:
            task: a `task_message`.
            header: the run's header, as JSON.
            place: folder or URL where the shard's files go; made where it is missing.

        Returns:
            A ShardResult, or what went wrong.
        """
        try:
            return self._capture(task, _header(header), place).to_message()
        except Exception as error:
            return failure_message(error)

    def _begin(self) -> Message:
        self._line.open()
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "log": str(_STDERR.readlink()) if _STDERR.exists() else "",
            "shapes": shapes_message(self._lease.shapes()),
            "layouts": self._lease.layouts(),
        }

    def _capture(self, task: Message, header: RunHeader, place: str) -> ShardResult:
        result = self._written(task, header, place)
        return_freed_memory()  # the rows are gone by now
        return result

    def _written(self, task: Message, header: RunHeader, place: str) -> ShardResult:
        shard = self._line.capture(task, header.plan)
        min_free_bytes = int(self._plan.settings.shards.min_free_gb * 1e9)

        def write(folder: Path) -> ShardEntry:
            make_folders(folder, header)
            return write_shard(folder, header, shard.proven, min_free_bytes).entry

        return ShardResult(write_staged(self._plan, place, write), shard.n_tokens, shard.gates)


def _header(message: Message) -> RunHeader:
    return RunHeader.from_json(JsonRecord(message, "the run's header"))


def _with_own_workers(plan: CapturePlan) -> CapturePlan:
    """A tensor-parallel engine keeps its workers inside the actor, which has all the GPUs that they need.

    vLLM would otherwise ask Ray for more of them (vllm/config/parallel.py, in a placement group).
    """
    engine = plan.settings.engine
    if engine.options.get("tensor_parallel_size", 1) == 1 or "distributed_executor_backend" in engine.options:
        return plan
    options = {**engine.options, "distributed_executor_backend": "mp"}
    return replace(plan, settings=replace(plan.settings, engine=replace(engine, options=options)))
