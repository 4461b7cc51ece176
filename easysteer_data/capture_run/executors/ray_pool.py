"""Actors of a Ray cluster: started, watched until they are ready, replaced, ended. Knows no shard.

Ray carries its own messages as pickles between processes of one user; ours are dicts of plain values, and no
file of a run is ever one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from easysteer_data.capture_run.executors.actor import CaptureActor
from easysteer_data.capture_run.executors.messages import Message, plan_message, raise_fatal, shapes_of
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.engine.wire import StreamShape
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.settings import ExecutorSettings
from easysteer_data.types import Stream

N_AT_ONCE = 3  # shards an actor has at once: one that waits, one in the engine, one on the way to the disk
_LOG_LINES = 15


@dataclass(eq=False)
class PooledActor:
    """An actor and what is known of it.

    Attributes:
        number: 0-based, never used again.
        handle: Ray's.
        group: its placement group, None for an actor without one.
        said: what `begin` answered, None until then.
        shards: those that it is capturing.
    """

    number: int
    handle: Any
    group: Any
    said: Message | None = None
    shards: set[int] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        """Whether it can take another shard."""
        return self.said is not None and len(self.shards) < N_AT_ONCE

    def __str__(self) -> str:
        if self.said is None:
            return f"actor {self.number}, which had not begun"
        return f"actor {self.number} (process {self.said['pid']} on {self.said['host']})"

    def log_tail(self) -> str:
        """The end of its log where this machine has it, and where to look for it."""
        log = "" if self.said is None else str(self.said["log"])
        if not log:
            return "Ray keeps its log in session_latest/logs of its temporary folder"
        path = Path(log)
        if not path.is_file():
            return f"its log is {log} on {self.said['host'] if self.said else 'its host'}"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return "\n  ".join([f"its log, {log}, ends:", *lines])


class RayPool:
    """The actors of one capture, as a context. `shapes` and `layouts` are those of an actor's engine.

    A cluster that this process is connected to already is used and left as it is.

    Attributes:
        actors: those that are there or on their way.
        n_started: actors that there were, lost ones too.

    Args:
        plan: the capture.
        actor: class of the actors.
    """

    def __init__(self, plan: CapturePlan, actor: type[CaptureActor] = CaptureActor) -> None:
        self._plan = plan
        self._actor = actor
        self._settings = plan.settings.executor
        self.n_started = 0
        self._connected_here = False
        self._beginning: dict[Any, PooledActor] = {}
        self.actors: list[PooledActor] = []

    def __enter__(self) -> Self:
        try:
            import ray
        except ImportError as error:
            raise SettingsError(f"executor=ray: {error}; pip install 'easysteer-data[ray]'") from error
        if not ray.is_initialized():
            _connect(self._settings)
            self._connected_here = True
        self._message = ray.put(plan_message(self._plan))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for actor in [*self.actors]:
            self.end(actor)
        if self._connected_here:
            ray.shutdown()

    def grow(self, n_wanted: int) -> None:
        """Ask for actors until there are `n_wanted`."""
        while len(self.actors) < n_wanted:
            actor = self._start()
            self.actors.append(actor)
            self._beginning[actor.handle.begin.remote()] = actor

    @property
    def beginning(self) -> Mapping[Any, PooledActor]:
        """Ray's reference of each answer that is due -> the actor that opens its engine."""
        return self._beginning

    def begun(self, reference: Any) -> None:
        """Take in an actor whose answer is there.

        Raises:
            SettingsError: and whatever else would end every actor.
            EngineError: the actor could not begin.
        """
        import ray

        actor = self._beginning.pop(reference)
        try:
            said: Message = ray.get(reference)
        except ray.exceptions.RayError as error:
            self.end(actor)
            raise EngineError(f"{actor} died: {error}") from error
        if "failure" in said:
            self.end(actor)
            raise_fatal(said)
            raise EngineError(f"{actor}: {said['failure']}: {said['text']}")
        actor.said = said

    def end(self, actor: PooledActor) -> None:
        """End an actor and let go of what it held; the second time does nothing."""
        import ray

        if actor not in self.actors:
            return
        self.actors.remove(actor)
        self._beginning = {ref: one for ref, one in self._beginning.items() if one is not actor}
        ray.kill(actor.handle)
        if actor.group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(actor.group)

    def shapes(self) -> dict[Stream, StreamShape]:
        """The streams' shapes: those of the plan, or where it can't tell them an engine's own."""
        return self._plan.shapes() or shapes_of(self._first()["shapes"])

    def layouts(self) -> dict[Stream, dict[str, int]]:
        """How rows divide into heads, for the streams that do."""
        if self._plan.shapes() is not None:
            return {}
        layouts: dict[Stream, dict[str, int]] = self._first()["layouts"]
        return layouts

    def _first(self) -> Message:
        """What the first actor says that is ready."""
        import ray

        self.grow(self._settings.n_actors)
        while not (ready := [actor for actor in self.actors if actor.said is not None]):
            references, _ = ray.wait(list(self._beginning), timeout=self._settings.start_timeout_s)
            if not references:
                raise EngineError(no_room(self._settings))
            self.begun(references[0])
        return ready[0].said or {}

    def _start(self) -> PooledActor:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs, group, options = actor_resources(self._plan), None, {}
        if needs["GPU"] > 1:  # one bundle, which is of one machine
            group = placement_group([needs], strategy="STRICT_PACK")
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, 0)
        named = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"]}
        own = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
        remote = ray.remote(self._actor).options(
            max_concurrency=N_AT_ONCE, max_restarts=0, max_task_retries=0, resources=own, **named, **options
        )
        self.n_started += 1
        return PooledActor(self.n_started - 1, remote.remote(self._message), group)


def actor_resources(plan: CapturePlan) -> dict[str, float]:
    """What an actor needs of a cluster, by Ray's names: with GPUs, as many as its engine has ranks."""
    executor = plan.settings.executor
    n_ranks = int(plan.settings.engine.options.get("tensor_parallel_size", 1))
    n_gpus = executor.gpus_per_rank * n_ranks
    return {"CPU": executor.num_cpus, "GPU": n_gpus, **executor.resources}


def no_room(settings: ExecutorSettings) -> str:
    """The message of a cluster in which no actor becomes ready."""
    import ray

    there = ray.cluster_resources()
    free = ray.available_resources()
    return (
        f"no actor began within executor.start_timeout_s={settings.start_timeout_s:g}: the cluster has "
        f"{there}, free are {free}; see executor.num_cpus, gpus_per_rank and resources"
    )


def _connect(settings: ExecutorSettings) -> None:
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning", **settings.options}
    address = settings.address or "local"
    if address == "local":
        options.setdefault("include_dashboard", False)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError) as error:
        raise SettingsError(
            f"executor.address={settings.address!r}: no Ray cluster there ({error})"
        ) from error
