"""One actor of a pool: an engine of its own that captures one shard after another into a folder.

Knows no scheduler, no journal and no corpus; whoever calls it does. Each method takes and gives plain dicts.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from easysteer_data.capture_run.collector import CollectedShard
from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.executors.messages import (
    Message,
    ShardResult,
    failure_message,
    plan_of,
    plan_of_task,
    shapes_message,
)
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.capture_run.shard_stream import ShardStream
from easysteer_data.shards import RunHeader
from easysteer_data.shards.checked_json import JsonRecord
from easysteer_data.shards.shard_files import make_folders, write_shard
from easysteer_data.types import CapturedShard

_STDERR = Path("/proc/self/fd/2")


class CaptureActor:
    """Captures shards, two at a time: the engine runs one while the one before is written.

    The engine lives in a thread of its own, whichever threads call.
    """

    def __init__(self, plan: Message) -> None:
        self._plan = _with_own_workers(plan_of(plan))
        self._lease = EngineLease(self._plan)
        self._engine_thread = ThreadPoolExecutor(1, "engine")

    def begin(self) -> Message:
        """Open the engine; say where the actor and its log are, and what the engine's rows look like."""
        try:
            return self._engine_thread.submit(self._begin).result()
        except Exception as error:
            return failure_message(error)

    def capture(self, task: Message, header: Message, folder: str) -> Message:
        """Capture one shard.

        Args:
            task: a `task_message`.
            header: the run's header, as JSON.
            folder: where the shard's files go; made where it is missing.

        Returns:
            A ShardResult, or what went wrong.
        """
        try:
            return self._capture(task, _header(header), Path(folder)).to_message()
        except Exception as error:
            return failure_message(error)

    def _begin(self) -> Message:
        self._lease.engine  # noqa: B018 - opens it
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "log": str(_STDERR.readlink()) if _STDERR.exists() else "",
            "shapes": shapes_message(self._lease.shapes()),
            "layouts": self._lease.layouts(),
        }

    def _capture(self, task: Message, header: RunHeader, folder: Path) -> ShardResult:
        plan = plan_of_task(self._plan, task)
        shapes = self._lease.shapes()
        prover = ShardProver(plan, shapes)
        stream = ShardStream(plan, self._lease.engine, shapes, header.plan, prover)
        n_tokens, proven = self._engine_thread.submit(_run, stream, prover, task["number"]).result()
        make_folders(folder, header)
        min_free_bytes = int(self._plan.settings.shards.min_free_gb * 1e9)
        entry = write_shard(folder, header, proven, min_free_bytes)
        return ShardResult(entry, n_tokens, Counter(prover.gates))


def _run(stream: ShardStream, prover: ShardProver, number: int) -> tuple[int, CapturedShard]:
    """Run a shard and prove its rows, which lie in the engine's memory until the next shard begins."""
    shards: list[CollectedShard] = []
    stream.run([number], shards.append)
    (collected,) = shards
    return prover.n_tokens(collected), prover.prove(collected)


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
