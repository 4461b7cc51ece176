"""A corpus through an engine into shards: continues what is there, and leaves a finished run alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easysteer_data.capture_run.background import Background
from easysteer_data.capture_run.collector import CollectedShard, ShardCollector
from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.capture_run.plan import CapturePlan, plan_capture
from easysteer_data.capture_run.progress import CaptureProgress
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.capture_run.space import check_space
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.session import CaptureSession
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import Manifest, RunWriter, finished_run


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """What a capture did.

    Attributes:
        run: the run's folder.
        n_prompts: prompts in it.
        n_rows: rows of each layer.
        n_shards_made: shards that were captured now; 0 where the finished run was there.
    """

    run: Path
    n_prompts: int
    n_rows: int
    n_shards_made: int

    def __str__(self) -> str:
        done = "captured" if self.n_shards_made else "found finished, nothing to capture:"
        return f"{self.run}: {done} {self.n_prompts} prompts, {self.n_rows} rows a layer"


def capture_corpus(
    settings: ExperimentSettings, out: Path, plan: CapturePlan | None = None, llm: Any = None
) -> CaptureOutcome:
    """Capture an experiment's corpus into the run folder `out`.

    Where `on_existing` is "resume", a finished run of the same settings is left alone, an unfinished one
    continued.

    Args:
        settings: the experiment's.
        out: the run folder.
        plan: what `plan_capture` made of these settings, None = make it.
        llm: an engine by `open_llm` with these settings that is open already and stays so, None = open one.

    Raises:
        SettingsMismatchError: `out` holds a run of other settings.
        SettingsError, CorpusError: before anything is written.
        ProofError: a row is wrong; its shard is not written, those before it stay.
        RunError: another process writes there, or the disk is too small or full.
    """
    plan = plan_capture(settings) if plan is None else plan
    if settings.on_existing == "resume" and (manifest := finished_run(out, plan.fingerprint)) is not None:
        return _outcome(out, plan, manifest, 0)
    with EngineLease(plan, llm) as lease:
        header = plan.header(lease.shapes(), lease.layouts())
        check_space(out, plan, header)
        with RunWriter.open(
            out,
            header,
            on_existing=settings.on_existing,
            min_free_bytes=int(settings.shards.min_free_gb * 1e9),
        ) as writer:
            todo = [number for number in range(len(header.plan)) if number not in writer.done]
            try:
                if todo:
                    _ShardCapture(plan, lease, writer, ShardMeasurements(out)).run(todo)
            except KeyboardInterrupt as stop:
                stop.add_note(f"{out}: {len(writer.done)} of {len(header.plan)} shards are finished and kept")
                raise
            manifest = writer.close(ShardMeasurements(out).totals())
    return _outcome(out, plan, manifest, len(todo))


def _outcome(out: Path, plan: CapturePlan, manifest: Manifest, n_made: int) -> CaptureOutcome:
    return CaptureOutcome(out, len(plan.prompts), manifest.n_rows, n_made)


class _ShardCapture:
    """Shards from the engine to the disk: this thread runs the engine, another one proves and writes."""

    def __init__(
        self, plan: CapturePlan, lease: EngineLease, writer: RunWriter, measurements: ShardMeasurements
    ) -> None:
        self._plan = plan
        self._engine = lease.engine
        self._shapes = lease.shapes()
        self._writer = writer
        self._measurements = measurements
        self._prover = ShardProver(plan, self._shapes)
        self._clock_s = time.monotonic()

    def run(self, todo: Sequence[int]) -> None:
        """Capture shards; rows that wait for the disk hold the engine back before they fill the memory."""
        settings = self._plan.settings
        shards = self._writer.header.plan
        collector = ShardCollector(shards)
        sampling = Sampling(settings.capture.max_tokens, {})
        feed = Feed(self._engine.llm, sampling, window=2 * self._engine.max_num_seqs)
        n_prompts = sum(shards[number][1] - shards[number][0] for number in todo)
        max_bytes = int(settings.shards.max_buffer_gb * 1e9) // 4
        with (
            CaptureProgress(n_prompts, shown=settings.progress) as self._progress,
            Background(self._finish, max_bytes) as background,
            CaptureSession(self._engine, self._shapes, self._plan.selection.reduce) as session,
        ):
            for step, finished in enumerate(feed.run(self._requests(todo))):
                background.check()
                if finished or step % session.steps_per_fetch == 0:
                    collector.add_rows(session.fetch())
                self._progress.add_outputs(finished)
                completions = [(index, self._prover.accept(index, output)) for index, output in finished]
                for shard in collector.add_completions(completions):
                    background.put(shard, shard.n_bytes)

    def _finish(self, shard: CollectedShard) -> None:
        n_tokens = self._prover.n_tokens(shard)
        gates_before = self._prover.gates.copy()
        entry = self._writer.write(self._prover.prove(shard))
        now_s = time.monotonic()
        gates = self._prover.gates - gates_before
        self._measurements.add(entry.number, n_tokens=n_tokens, wall_s=now_s - self._clock_s, gates=gates)
        self._clock_s = now_s
        self._progress.add_bytes(entry.n_bytes)

    def _requests(self, todo: Sequence[int]) -> Iterator[Request]:
        for number in todo:
            for index in range(*self._writer.header.plan[number]):
                token_ids = list(self._plan.prompts[index].token_ids)
                yield Request(index, {"prompt_token_ids": token_ids}, self._plan.selects[index])
