"""Where the driver's time goes in a capture: seconds in each phase, and after the engine's last step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch


@contextmanager
def driver_phases() -> Iterator[dict[str, float]]:
    """Time the phases of the captures in the block; the dict is filled meanwhile.

    "after the last step" counts from the engine's last output to the end of the session, "end" from there to
    the end of the block; the phases within the former are named "after: ...". Phases of the shards are summed
    over the threads that they run in.
    """
    from vllm.v1.engine.llm_engine import LLMEngine

    from easysteer_data.capture_run import shard_stream
    from easysteer_data.capture_run.prover import ShardProver
    from easysteer_data.engine.feed import Feed
    from easysteer_data.engine.row_store import RowStore
    from easysteer_data.engine.session import CaptureSession
    from easysteer_data.engine.tapped import TappedEngine
    from easysteer_data.hidden_states import stream
    from easysteer_data.shards import layer_bytes, layer_tar, layer_work, shard_work, writer

    begun_s = time.perf_counter()
    seconds: dict[str, float] = defaultdict(float)
    after: dict[str, float] = defaultdict(float)
    last_step = session_end = 0.0

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal last_step, session_end
            begun = time.perf_counter()
            result = function(*args, **kwargs)
            ended = time.perf_counter()
            seconds[name] += ended - begun
            after[name] += ended - begun
            if name == "engine steps":
                seconds.setdefault("before the first step", begun - begun_s)
                last_step = ended
                after.clear()
            elif name == "session end":
                session_end = ended
                seconds["after the last step"] += ended - last_step
                seconds.update({f"after: {phase}": spent for phase, spent in after.items()})
            return result

        return run

    with ExitStack() as stack:
        for owner, method, name in (
            (stream, "prepare_prompts", "prepare prompts"),
            (TappedEngine, "__init__", "ask the workers"),
            (CaptureSession, "__enter__", "session start"),
            (Feed, "_fill", "feed"),
            (LLMEngine, "step", "engine steps"),
            (CaptureSession, "fetch", "fetch"),
            (CaptureSession, "look", "look"),
            (stream._Part, "add", "add"),
            (stream, "wait_for_rows", "wait for rows"),
            (shard_stream, "wait_for_rows", "wait for rows"),
            (RowStore, "finish", "wait for copies"),
            (stream._Part, "prove", "prove"),
            (stream, "capture_result", "result"),
            (CaptureSession, "__exit__", "session end"),
            (ShardProver, "prove", "shards: prove"),
            (shard_work.ShardWork, "result", "shards: wait for layers"),
            (layer_work, "sum_part", "shards: sums"),
            (layer_tar.LayerTarWriter, "write", "shards: converted layers' files"),
            (layer_bytes.LayerBytes, "write_to", "shards: layers' files"),
            (layer_bytes.LayerBytes, "sha256", "shards: hashes"),
            (writer.RunWriter, "write", "shards: write"),
            (writer.RunWriter, "_commit", "shards: commit"),
            (writer.RunWriter, "close", "shards: close"),
        ):
            stack.enter_context(patch.object(owner, method, timed(name, getattr(owner, method))))
        yield seconds
        if session_end:
            seconds["end"] = time.perf_counter() - session_end
