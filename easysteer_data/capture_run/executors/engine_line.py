"""An engine that captures the shards of several callers, in one recording while there is always a next one.

Knows prompts and rows, no scheduler and no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from easysteer_data.capture_run.collector import CollectedShard
from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.executors.messages import Message, Places, prompts_of, selects_of
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.capture_run.prover import ShardProver
from easysteer_data.capture_run.shard_stream import ShardStream
from easysteer_data.errors import EngineError
from easysteer_data.select import SelectSpec
from easysteer_data.types import CapturedShard, Prompt


@dataclass(frozen=True, slots=True)
class LineShard:
    """A shard that came out of the engine.

    Attributes:
        proven: its rows.
        n_tokens: tokens that the model read or made.
        gates: fault -> rows and layers that had it.
    """

    proven: CapturedShard
    n_tokens: int
    gates: Mapping[str, int]


class EngineLine:
    """Shards one behind the other through one engine, which lives in a thread of its own.

    The engine does not run empty between shards: the prompts of the next one fill its steps while the last
    ones of a shard finish. Each caller's thread proves its own shard meanwhile.

    Args:
        plan: the capture; tasks bring its prompts.
        lease: the engine.
    """

    def __init__(self, plan: CapturePlan, lease: EngineLease) -> None:
        self._prompts: Places[Prompt] = Places()
        self._selects: Places[SelectSpec | None] = Places()
        self._plan = replace(plan, prompts=self._prompts, selects=self._selects)
        self._lease = lease
        self._thread = ThreadPoolExecutor(1, "engine")
        self._waiting: deque[tuple[int, Future[CollectedShard]]] = deque()
        self._prover: ShardProver | None = None

    def open(self) -> None:
        """Open the engine, which takes a while; raises what vLLM raises."""
        self._thread.submit(lambda: self._lease.engine).result()
        self._prover = ShardProver(self._plan, self._lease.shapes())

    def capture(self, task: Message, shards: Sequence[tuple[int, int]]) -> LineShard:
        """Capture one shard; several threads may call this, each for another one.

        Args:
            task: a `task_message`.
            shards: half-open prompt ranges of all shards, always the same.

        Raises:
            EngineError: the engine failed, which ends every shard that is in it.
            ProofError: a row is missing, doubled, mislabelled, all zeros or not finite.
        """
        number = int(task["number"])
        self._prompts.put(task["start"], prompts_of(task))
        self._selects.put(task["start"], selects_of(task))
        try:
            answer: Future[CollectedShard] = Future()
            self._waiting.append((number, answer))
            self._thread.submit(self._run_waiting, shards)
            return self._proven(answer.result())
        finally:
            for places in (self._prompts, self._selects):
                places.remove(range(*shards[number]))

    def _proven(self, shard: CollectedShard) -> LineShard:
        prover = self._ready_prover()
        n_tokens = prover.n_tokens(shard)
        proven, gates = prover.prove(shard)
        return LineShard(proven, n_tokens, gates)

    def _run_waiting(self, shards: Sequence[tuple[int, int]]) -> None:
        """Run the shards that wait, and those that are asked for meanwhile."""
        if not self._waiting:  # ran with those before it
            return
        prover = self._ready_prover()
        stream = ShardStream(self._plan, self._lease.engine, self._lease.shapes(), shards, prover)
        taken: dict[int, Future[CollectedShard]] = {}
        failure: Exception = EngineError("the engine stopped before it had run the whole shard")
        try:
            stream.run(self._numbers(taken), lambda shard: taken.pop(shard.number).set_result(shard))
        except Exception as error:
            failure = error
            if not taken and self._waiting:  # it failed before it took one: this call's own
                taken.update([self._waiting.popleft()])
        for answer in taken.values():  # what waits still has a call of its own
            answer.set_exception(failure)

    def _numbers(self, taken: dict[int, Future[CollectedShard]]) -> Iterator[int | None]:
        """The shards that wait; None while there is none but the engine still runs some that were taken."""
        while self._waiting or taken:
            if not self._waiting:
                yield None
                continue
            number, answer = self._waiting.popleft()
            taken[number] = answer
            yield number

    def _ready_prover(self) -> ShardProver:
        if self._prover is None:
            raise EngineError("the engine was not opened")
        return self._prover
