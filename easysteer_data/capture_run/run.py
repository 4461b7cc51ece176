"""A corpus through an engine into shards: continues what is there, and leaves a finished run alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easysteer_data.capture_run.background import Background
from easysteer_data.capture_run.collector import CollectedShard
from easysteer_data.capture_run.destination import (
    Output,
    check_output,
    find_finished,
    local_folder,
    open_writer,
)
from easysteer_data.capture_run.early_shards import EarlyShards
from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.executors.ray_capture import RayCapture
from easysteer_data.capture_run.executors.ray_pool import RayPool
from easysteer_data.capture_run.freed_memory import return_freed_memory
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.capture_run.plan import CapturePlan, plan_capture
from easysteer_data.capture_run.progress import CaptureProgress
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.capture_run.shard_stream import ShardStream
from easysteer_data.capture_run.slices import ShardSlice
from easysteer_data.capture_run.space import check_space
from easysteer_data.cores import helper_threads, short_turns
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import Manifest, RunWriter
from easysteer_data.shards.object_store import is_url
from easysteer_data.shards.remote_writer import RemoteRunWriter

# Proven and written side by side: a small one can't keep the helper threads busy, and waits for the disk.
_N_SHARDS_AT_ONCE = min(4, 1 + helper_threads())


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """What a capture did.

    Attributes:
        run: the run's folder or URL.
        n_prompts: prompts in it.
        n_rows: rows of each layer.
        n_shards_made: shards that were captured now; 0 where the finished run was there.
        part: which slice of a run it is; None = all of it.
    """

    run: Output
    n_prompts: int
    n_rows: int
    n_shards_made: int
    part: ShardSlice | None = None

    def __str__(self) -> str:
        done = "captured" if self.n_shards_made else "found finished, nothing to capture:"
        text = f"{self.run}: {done} {self.n_prompts} prompts, {self.n_rows} rows a layer"
        if self.part is None:
            return text
        return f"{text}; slice {self.part}, which the stage merge joins with the others"


def capture_corpus(
    settings: ExperimentSettings, out: Output, plan: CapturePlan | None = None, llm: Any = None
) -> CaptureOutcome:
    """Capture an experiment's corpus into the run folder `out`, or the URL of an object store.

    Where `on_existing` is "resume", a finished run of the same settings is left alone, an unfinished one
    continued. With `shard_slice` its share of the shards goes into a folder beside `out`, see `slices.py`.

    Args:
        settings: the experiment's.
        out: the run's folder or URL.
        plan: what `plan_capture` made of these settings, None = make it.
        llm: an engine by `open_llm` with these settings that is open already and stays so, None = open one.

    Raises:
        SettingsMismatchError: `out` holds a run of other settings.
        SettingsError, CorpusError: before anything is written.
        ProofError: a row is wrong; its shard is not written, those before it stay.
        RunError: another process writes there, or the disk is too small or full.
    """
    check_output(settings, out)
    part = None if settings.shard_slice is None else ShardSlice.parse(settings.shard_slice)
    plan = plan_capture(settings) if plan is None else plan
    resumes = settings.on_existing == "resume"
    manifest = find_finished(settings, out, plan.fingerprint) if resumes else None
    if manifest is not None:
        return _outcome(out, plan, manifest, 0)
    uses_ray = settings.executor.kind == "ray"
    with RayPool(plan) if uses_ray else EngineLease(plan, llm) as source:
        return _capture_into(out, part, plan, source)


def _capture_into(
    out: Output, part: ShardSlice | None, plan: CapturePlan, source: EngineLease | RayPool
) -> CaptureOutcome:
    header = plan.header(source.shapes(), source.layouts())
    numbers = range(len(header.plan)) if part is None else part.shards(len(header.plan))
    target = out if part is None else part.folder(Path(out))
    if not is_url(target):
        check_space(Path(target), plan, header, len(numbers))
    measurements = ShardMeasurements(local_folder(plan.settings, target))
    with open_writer(plan.settings, target, header) as writer:
        todo = [number for number in numbers if number not in writer.done]
        try:
            if todo:
                _capture(plan, source, writer, measurements, todo)
        except KeyboardInterrupt as stop:
            stop.add_note(f"{target}: {len(writer.done)} of {len(numbers)} shards are finished and kept")
            raise
        if part is not None:
            return _part_outcome(target, writer, part, len(todo))
        manifest = writer.close(measurements.totals())
    return _outcome(out, plan, manifest, len(todo))


def _capture(
    plan: CapturePlan,
    source: EngineLease | RayPool,
    writer: RunWriter | RemoteRunWriter,
    measurements: ShardMeasurements,
    todo: Sequence[int],
) -> None:
    if isinstance(source, RayPool):
        RayCapture(plan, source, writer, measurements).run(todo)
    else:
        _ShardCapture(plan, source, writer, measurements).run(todo)


def _outcome(out: Output, plan: CapturePlan, manifest: Manifest, n_made: int) -> CaptureOutcome:
    return CaptureOutcome(out, len(plan.prompts), manifest.n_rows, n_made)


def _part_outcome(
    folder: Output, writer: RunWriter | RemoteRunWriter, part: ShardSlice, n_made: int
) -> CaptureOutcome:
    n_prompts = sum(stop - start for start, stop in (entry.prompts for entry in writer.entries))
    n_rows = sum(entry.n_rows for entry in writer.entries)
    return CaptureOutcome(folder, n_prompts, n_rows, n_made, part)


class _ShardCapture:
    """Shards from the engine to the disk: this thread runs the engine, others prove and write."""

    def __init__(
        self,
        plan: CapturePlan,
        lease: EngineLease,
        writer: RunWriter | RemoteRunWriter,
        measurements: ShardMeasurements,
    ) -> None:
        self._plan = plan
        self._engine = lease.engine
        self._shapes = lease.shapes()
        self._writer = writer
        self._measurements = measurements
        self._prover = ShardProver(plan, self._shapes)
        self._clock_s = time.monotonic()
        self._noting = threading.Lock()

    def run(self, todo: Sequence[int]) -> None:
        """Capture shards; rows that wait for the disk hold the engine back before they fill the memory."""
        settings, shards = self._plan.settings, self._writer.header.plan
        n_prompts = sum(shards[number][1] - shards[number][0] for number in todo)
        max_bytes = int(settings.shards.max_buffer_gb * 1e9) // 4
        stream = ShardStream(self._plan, self._engine, self._shapes, shards, self._prover, self._early())
        with (
            short_turns(),
            CaptureProgress(n_prompts, shown=settings.progress) as self._progress,
            Background(self._finish, max_bytes, _N_SHARDS_AT_ONCE) as background,
        ):

            def after_step(finished: Sequence[tuple[int, Any]]) -> None:
                background.check()
                self._progress.add_outputs(finished)

            stream.run(todo, lambda shard: background.put(shard, shard.n_bytes), after_step)

    def _early(self) -> EarlyShards | None:
        """What begins with shards before their steps have ended, where it is known what will come."""
        if isinstance(self._writer, RunWriter) and EarlyShards.can_foresee(self._plan):
            return EarlyShards(self._shapes, self._plan, self._prover, self._writer)
        return None

    def _finish(self, shard: CollectedShard) -> None:
        n_tokens = self._prover.n_tokens(shard)
        proven, gates = self._prover.prove(shard)
        # Noted before the commit: a crash in between costs no figure, and a later note replaces this one.
        self._note(proven.number, n_tokens, gates)
        n_bytes = self._writer.write(proven).n_bytes
        with self._noting:
            self._progress.add_bytes(n_bytes)
        del proven
        return_freed_memory()

    def _note(self, number: int, n_tokens: int, gates: Mapping[str, int]) -> None:
        with self._noting:
            now_s = time.monotonic()
            wall_s, self._clock_s = now_s - self._clock_s, now_s
            self._measurements.add(number, n_tokens=n_tokens, wall_s=wall_s, gates=gates)
