"""A corpus through an engine into shards: continues what is there, and leaves a finished run alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easysteer_data.capture_run.collector import ShardCollector
from easysteer_data.capture_run.plan import CapturePlan, plan_capture
from easysteer_data.capture_run.progress import CaptureProgress
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.open import close_llm, open_llm
from easysteer_data.engine.session import STEPS_PER_FETCH, CaptureSession, TappedEngine
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import RunWriter, finished_run


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


def capture_corpus(settings: ExperimentSettings, out: Path) -> CaptureOutcome:
    """Capture an experiment's corpus into the run folder `out`.

    A finished run of the same settings is left alone, an unfinished one continued.

    Raises:
        SettingsMismatchError: `out` holds a run of other settings.
        SettingsError, CorpusError: before anything is written.
        ProofError: a row is wrong; its shard is not written, those before it stay.
    """
    plan = plan_capture(settings)
    manifest = finished_run(out, plan.header.fingerprint)
    n_made = 0
    if manifest is None:
        writer = RunWriter.open(out, plan.header)
        todo = [number for number in range(len(plan.header.plan)) if number not in writer.done]
        if todo:
            _capture_shards(settings, plan, writer, todo)
        n_made = len(todo)
        manifest = writer.close()
    return CaptureOutcome(out, len(plan.prompts), manifest.n_rows, n_made)


def _capture_shards(
    settings: ExperimentSettings, plan: CapturePlan, writer: RunWriter, todo: list[int]
) -> None:
    llm = open_llm(
        settings.model.path,
        streams=tuple(plan.layers),
        layers=settings.capture.layers,
        in_process=settings.engine.in_process,
        dtype=settings.model.dtype,
        max_model_len=plan.max_model_len,
        **settings.engine.llm_kwargs(),
    )
    try:
        _feed(settings, plan, writer, todo, llm)
    finally:
        close_llm(llm)


def _feed(
    settings: ExperimentSettings, plan: CapturePlan, writer: RunWriter, todo: list[int], llm: Any
) -> None:
    engine = TappedEngine(llm)
    shapes = {stream: engine.shape(stream, layer_ids) for stream, layer_ids in plan.layers.items()}
    collector = ShardCollector(plan.prompts, plan.header.plan, plan.select, shapes, settings.capture.dtype)
    feed = Feed(llm, Sampling(settings.capture.max_tokens, {}), window=2 * engine.max_num_seqs)
    n_prompts = sum(plan.header.plan[number][1] - plan.header.plan[number][0] for number in todo)
    with (
        CaptureProgress(n_prompts, shown=settings.progress) as progress,
        CaptureSession(engine, shapes, settings.capture.dtype) as session,
    ):
        for step, finished in enumerate(feed.run(_requests(plan, todo))):
            if finished or step % STEPS_PER_FETCH == 0:
                collector.add_rows(session.fetch().chunks)
            progress.add_outputs(finished)
            for shard in collector.add_outputs(finished):
                progress.add_bytes(writer.write(shard).n_bytes)


def _requests(plan: CapturePlan, todo: list[int]) -> Iterator[Request]:
    for number in todo:
        for index in range(*plan.header.plan[number]):
            token_ids = list(plan.prompts[index].token_ids)
            yield Request(index, {"prompt_token_ids": token_ids}, plan.select)
