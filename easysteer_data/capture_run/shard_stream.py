"""Shards from an engine, each handed on as it becomes whole. Knows prompts and rows, no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from easysteer_data.capture_run.collector import CollectedShard, ShardCollector
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.cores import helper_threads, shared_pool
from easysteer_data.engine.arrival import row_check, rows_unread, wait_for_rows
from easysteer_data.engine.early_rows import EarlyRows
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.session import CaptureSession
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import StreamShape
from easysteer_data.select import max_rows
from easysteer_data.types import Stream

_N_COPIERS = helper_threads()


class ShardStream:
    """Keeps an engine busy with the prompts of shards, and lets go of each shard when it is whole.

    Args:
        plan: the capture; the prompts of the shards that are asked for must be in it.
        engine: the engine.
        shapes: what is captured of each stream.
        shards: half-open prompt ranges of all shards.
        prover: takes the engine's outputs in.
        early: called now and then with rows of steps that are still running, see CaptureSession.
    """

    def __init__(
        self,
        plan: CapturePlan,
        engine: TappedEngine,
        shapes: Mapping[Stream, StreamShape],
        shards: Sequence[tuple[int, int]],
        prover: ShardProver,
        early: Callable[[Sequence[EarlyRows]], None] | None = None,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._shapes = shapes
        self._shards = shards
        self._prover = prover
        self._early = early
        # Most rows of each prompt, of shards that are running and have no store yet. Where rows are reduced,
        # the engine records others than are counted.
        self._n_rows: dict[int, list[int]] = {}

    def run(
        self,
        numbers: Iterable[int | None],
        take: Callable[[CollectedShard], None],
        after_step: Callable[[Sequence[tuple[int, Any]]], None] = lambda _: None,
    ) -> None:
        """Run the prompts of some shards.

        An exception of a function that is called here stops the recording as one of the engine does.

        Args:
            numbers: which shards; None = no further one is there yet, see `Feed.run`.
            take: called with each shard, its rows not proven yet.
            after_step: called with the requests that a step of the engine finished.

        Raises:
            EngineError: the engine ran other tokens than were given, or can't record.
        """
        sampling = Sampling(self._plan.settings.capture.max_tokens, {})
        feed = Feed(self._engine.llm, sampling, window=2 * self._engine.max_num_seqs)
        max_buffer_gb = self._plan.settings.shards.max_buffer_gb
        copiers = shared_pool(_N_COPIERS, "easysteer-data-copy")
        with CaptureSession(
            self._engine,
            self._shapes,
            self._plan.selection.reduce,
            memory_bytes=int(max_buffer_gb * 1e9) if self._engine.facts[0].device == "cuda" else None,
            groups=[start for start, _ in self._shards],
            early=self._early,
        ) as session:

            def open_store(number: int) -> RowStore | None:
                counts = self._n_rows.pop(number, None)
                if counts is None:
                    return None
                return RowStore(self._shards[number][0], counts, self._shapes, copiers, session.memory)

            collector = ShardCollector(self._shards, open_store)
            for finished in feed.run(self._requests(numbers)):
                after_step(finished)
                completions = [(index, self._prover.accept(index, output)) for index, output in finished]
                complete = collector.add_completions(completions)
                # Sums take the device's memory, and come only when they are asked for.
                has_fetched = session.reduce == "mean" and len(finished) > 0
                collector.add_rows(session.fetch() if has_fetched else session.look())
                for number in complete:
                    if not has_fetched:
                        has_all = self._row_check(collector.shard(number))
                        has_fetched = wait_for_rows(session, has_all, collector.add_rows)
                    take(collector.let_go(number))

    def _row_check(self, shard: CollectedShard) -> Callable[[], bool | None]:
        """What says whether every row of a shard whose prompts are finished is there."""
        max_tokens = self._plan.settings.capture.max_tokens
        unread = (
            rows_unread(self._plan.selects[i], max_tokens, len(shard.completions[i].token_ids))
            for i in range(*self._shards[shard.number])
        )
        return row_check(shard.store, unread)

    def _requests(self, numbers: Iterable[int | None]) -> Iterator[Request | None]:
        n_steps = self._plan.settings.capture.max_tokens - 1
        for number in numbers:
            if number is None:
                yield None
                continue
            indices = range(*self._shards[number])
            if self._plan.selection.reduce is None:
                # Prompts are read twice: those of a shard may be many, and their rows few.
                self._n_rows[number] = [
                    max_rows(self._plan.prompts[index].token_ids, self._plan.selects[index], n_steps)
                    for index in indices
                ]
            for index in indices:
                token_ids = list(self._plan.prompts[index].token_ids)
                yield Request(index, {"prompt_token_ids": token_ids}, self._plan.selects[index])
