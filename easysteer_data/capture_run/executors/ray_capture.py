"""Shards from the actors of a pool into one run: handed out, committed here alone, redone where lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from easysteer_data.capture_run.executors.messages import Message, ShardResult, raise_fatal, task_message
from easysteer_data.capture_run.executors.queue import ShardQueue
from easysteer_data.capture_run.executors.ray_pool import N_AT_ONCE, PooledActor, RayPool, no_room
from easysteer_data.capture_run.executors.staging import staging_of
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.capture_run.progress import CaptureProgress
from easysteer_data.errors import EngineError
from easysteer_data.shards import RunWriter
from easysteer_data.shards.remote_writer import RemoteRunWriter

_LOOK_S = 1.0  # how often slow shards and missing actors are looked for while nothing happens


@dataclass(frozen=True, slots=True)
class _Task:
    """A shard that an actor has."""

    number: int
    actor: PooledActor


class RayCapture:
    """Captures shards of a run with a pool's actors.

    Each actor writes into a place of its own, see `staging.py`; this process takes the first copy of a shard
    that arrives into the run and commits it. Nobody else touches the run.
    """

    def __init__(
        self,
        plan: CapturePlan,
        pool: RayPool,
        writer: RunWriter | RemoteRunWriter,
        measurements: ShardMeasurements,
    ) -> None:
        self._plan = plan
        self._settings = plan.settings.executor
        self._pool = pool
        self._writer = writer
        self._measurements = measurements
        self._staging = staging_of(plan, writer)
        self._tasks: dict[Any, _Task] = {}
        self._n_failed_begins = 0
        self._clock_s = time.monotonic()

    def run(self, todo: Sequence[int]) -> None:
        """Capture shards.

        Raises:
            ProofError, SettingsError: an actor's work failed as it would anywhere.
            EngineError: a shard was lost too often, or no actor can begin; with the end of an actor's log.
        """
        import ray

        self._header = ray.put(self._writer.header.to_json())
        self._queue = ShardQueue(todo, self._settings.n_retries, self._settings.second_copy_after)
        plan = self._writer.header.plan
        n_prompts = sum(plan[number][1] - plan[number][0] for number in todo)
        self._staging.remove()  # of a driver that was killed
        try:
            with CaptureProgress(n_prompts, shown=self._plan.settings.progress) as self._progress:
                while not self._queue.finished:
                    self._step()
        finally:
            for actor in [*self._pool.actors]:
                self._pool.end(actor)
            self._staging.remove()

    def _step(self) -> None:
        """Hand out what can be, wait for something to happen, take it in."""
        import ray

        self._grow()
        self._hand_out()
        references = [*self._tasks, *self._pool.beginning]
        timeout_s = _LOOK_S if self._tasks else self._settings.start_timeout_s
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout_s)
        if not ready and not self._tasks:
            raise EngineError(no_room(self._settings))
        for reference in ready:
            if reference in self._tasks:
                self._take(reference)
            elif reference in self._pool.beginning:
                self._begun(reference)

    def _grow(self) -> None:
        """Never more actors than shards; beyond `n_actors` one at a time, while all are busy."""
        n_wanted = self._settings.n_actors
        if self._settings.max_actors is not None and not self._pool.beginning:
            n_busy = sum(not actor.has_room for actor in self._pool.actors)
            n_wanted = min(max(n_wanted, n_busy + 1), self._settings.max_actors)
        self._pool.grow(min(n_wanted, self._queue.n_waiting + len(self._tasks)))

    def _hand_out(self) -> None:
        """One shard an actor, then a second one and so on, none more than its share of what is left."""
        n_left = self._queue.n_waiting + len(self._tasks)
        share = -(-n_left // max(len(self._pool.actors), 1))
        for n_taken in range(min(share, N_AT_ONCE)):
            for actor in self._pool.actors:
                if not actor.has_room or len(actor.shards) > n_taken:
                    continue
                number = self._queue.take(time.monotonic(), actor.shards)
                if number is None:
                    return
                task = task_message(self._plan, number, self._writer.header.plan[number])
                reference = actor.handle.capture.remote(task, self._header, self._staging.place(actor.number))
                actor.shards.add(number)
                self._tasks[reference] = _Task(number, actor)

    def _take(self, reference: Any) -> None:
        import ray

        task = self._tasks.pop(reference)
        task.actor.shards.discard(task.number)
        try:
            answer: Message = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._lost(task, f"{task.actor} died: {error}")
            return
        if "failure" in answer:
            raise_fatal(answer)
            self._lost(task, f"{task.actor}: {answer['failure']}: {answer['text']}")
            return
        result = ShardResult.of(answer)
        if self._queue.finish(task.number, time.monotonic()):
            self._commit(result, task.actor)
        else:
            self._staging.discard(result.entry, task.actor.number)

    def _commit(self, result: ShardResult, actor: PooledActor) -> None:
        entry, now_s = result.entry, time.monotonic()
        wall_s, self._clock_s = now_s - self._clock_s, now_s
        self._measurements.add(entry.number, n_tokens=result.n_tokens, wall_s=wall_s, gates=result.gates)
        self._staging.commit(entry, actor.number)
        self._progress.add_shard(entry.prompts[1] - entry.prompts[0], result.n_tokens, entry.n_bytes)

    def _lost(self, task: _Task, why: str) -> None:
        """Give up an actor: what it was capturing goes to others."""
        self._pool.end(task.actor)
        numbers = {task.number, *task.actor.shards}
        self._tasks = {ref: one for ref, one in self._tasks.items() if one.actor is not task.actor}
        why = f"{why}\n{task.actor.log_tail()}"
        for number in sorted(numbers):
            self._queue.lose(number, why)
        self._staging.remove(task.actor.number)

    def _begun(self, reference: Any) -> None:
        try:
            self._pool.begun(reference)
            self._n_failed_begins = 0
        except EngineError as error:
            self._n_failed_begins += 1
            if self._n_failed_begins > self._settings.n_retries:
                raise EngineError(
                    f"{self._n_failed_begins} actors in a row could not begin: {error}"
                ) from error
