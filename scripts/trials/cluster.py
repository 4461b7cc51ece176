"""Trials of captures by Ray's actors on one machine: actors and drivers are killed, a disk is filled."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import ray

from easysteer_data.capture_run import CapturePlan, plan_capture
from easysteer_data.capture_run.executors.ray_capture import RayCapture
from easysteer_data.capture_run.executors.ray_pool import RayPool
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.errors import RunError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import RunHeader, RunWriter
from tests.capture_run.ray_actors import MadeRowsActor, made_shard
from tests.shards.made import files_of
from tests.tiny import save_tiny

N_SHARDS = 80
_TIMED = ("journal.jsonl", "measured.jsonl", "run.json", "manifest.json")
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["scripts.trials.cluster"])


@dataclass(frozen=True)
class Found:
    """What a trial found; see failures.Trial."""

    n_mishaps: int
    lost: int
    doubled: int
    same_bytes: bool
    said: str = ""


@dataclass
class Scene:
    """A capture by made-up actors.

    Attributes:
        plan: the capture.
        header: of its run.
        run: the folder of its run.
        pool: the actors, while it runs.
    """

    plan: CapturePlan
    header: RunHeader
    run: Path
    pool: RayPool | None = None

    @classmethod
    def at(cls, out: Path, pause_s: float) -> Scene:
        """Make the model and corpus in a folder, where they are not there yet."""
        model, corpus = out / "model", out / "corpus.jsonl"
        if not model.exists():
            save_tiny(model)
            (out / "pause").write_text(str(pause_s))
            lines = [
                json.dumps({"text": "x " * (1 + i % 30) + str(i), "label": i % 2})
                for i in range(4 * N_SHARDS)
            ]
            corpus.write_text("\n".join(lines) + "\n")
        plan = plan_capture(_experiment(out, model, corpus))
        return cls(plan, plan.header(plan.shapes() or {}), out / "run")

    def capture(self) -> None:
        """Capture what is not done yet."""
        with RunWriter.open(self.run, self.header) as writer, RayPool(self.plan, MadeRowsActor) as pool:
            self.pool = pool
            todo = [number for number in range(len(self.header.plan)) if number not in writer.done]
            RayCapture(self.plan, pool, writer, ShardMeasurements(self.run)).run(todo)
            writer.close()

    def pids(self) -> list[int]:
        """Processes of the actors that are ready."""
        actors = [] if self.pool is None else [*self.pool.actors]
        return [int(actor.said["pid"]) for actor in actors if actor.said is not None]

    def found(self, n_mishaps: int, said: str = "") -> Found:
        """Compare the run with that of one undisturbed process."""
        whole = self.run.with_name("whole")
        with RunWriter.open(whole, self.header) as writer:
            for number, (start, stop) in enumerate(self.header.plan):
                writer.write(
                    made_shard(number, [self.plan.prompts[i] for i in range(start, stop)], self.header)
                )
            writer.close()
        expected, files = (
            {name: data for name, data in files_of(folder).items() if name not in _TIMED}
            for folder in (whole, self.run)
        )
        lines = (self.run / "journal.jsonl").read_text().splitlines()
        committed = Counter(json.loads(line)["shard"] for line in lines)
        lost = len(self.header.plan) - len(committed)
        return Found(n_mishaps, lost, committed.total() - len(committed), files == expected, said)


@contextmanager
def started() -> Iterator[None]:
    """A cluster of this machine, for all trials."""
    options = {"object_store_memory": 80 * 2**20, "include_dashboard": False, "log_to_driver": False}
    context = ray.init(address="local", num_cpus=2, **options)
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    try:
        yield
    finally:
        ray.shutdown()


def kill_actors(out: Path, n_kills: int) -> Found:
    """Kill an actor now and then until so many are dead or the run is finished."""
    scene, chance, killed, ended = Scene.at(out, 0.3), random.Random(0), list[int](), threading.Event()  # noqa: S311

    def kill() -> None:
        while len(killed) < n_kills and not ended.is_set():
            target = _n_committed(scene.run) + chance.randrange(3)
            while _n_committed(scene.run) < target and not ended.wait(0.05):
                pass
            ended.wait(chance.uniform(0, 0.3))
            alive = [pid for pid in scene.pids() if pid not in killed]
            if alive:
                killed.append(chance.choice(alive))
                with suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    scene.capture()
    ended.set()
    killer.join()
    return scene.found(len(killed))


def kill_driver(out: Path, n_kills: int) -> Found:
    """Kill the driver at random moments, each time starting another one, and let the last one finish."""
    scene, chance, n_hit = Scene.at(out, 0.3), random.Random(0), 0  # noqa: S311
    for _ in range(n_kills):
        driver = _driver(out)
        target = _n_committed(scene.run) + chance.randrange(4)
        _wait(lambda: _n_committed(scene.run) >= target or not driver.is_alive())  # noqa: B023 - called at once
        time.sleep(chance.uniform(0, 0.5))
        n_hit += driver.is_alive()
        driver.kill()
        driver.join()
    scene.capture()
    return scene.found(n_hit)


def fill_one_disk(out: Path) -> Found:
    """Let the first actor's files not grow any more, as on a full disk; the others' can."""
    scene, said = Scene.at(out, 0.1), list[str]()
    lost = RayCapture._lost

    def fill() -> None:
        _wait(lambda: bool(scene.pids()))
        resource.prlimit(scene.pids()[0], resource.RLIMIT_FSIZE, (3000, 3000))

    def note(capture: RayCapture, task: object, why: str) -> None:
        said.append(why.partition("\n")[0])
        lost(capture, task, why)  # type: ignore[arg-type]

    RayCapture._lost = note  # type: ignore[method-assign]  # what is told when the retries are used up
    try:
        filler = threading.Thread(target=fill)
        filler.start()
        scene.capture()
        filler.join()
    finally:
        RayCapture._lost = lost  # type: ignore[method-assign]
    return scene.found(len(said), said[0] if said else "")


def two_drivers(out: Path) -> Found:
    """Start a second driver while one captures into the same folder."""
    scene, said = Scene.at(out, 0.1), ""
    driver = _driver(out)
    _wait(lambda: _n_committed(scene.run) >= 1 or not driver.is_alive())
    try:
        scene.capture()
    except RunError as error:
        said = str(error).replace(str(out), "OUT")
    driver.join()
    return scene.found(int(bool(said)), said)


def _driver(out: Path) -> multiprocessing.process.BaseProcess:
    driver = _processes.Process(target=_drive, args=(str(out), os.environ["RAY_ADDRESS"]))
    driver.start()
    return driver


def _drive(out: str, address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    Scene.at(Path(out), 0).capture()


def _experiment(out: Path, model: Path, corpus: Path) -> ExperimentSettings:
    values = {
        "name": "trial",
        "out": str(out),
        "progress": False,
        "model": {"path": str(model), "dtype": "float32", "max_model_len": 128},
        "corpus": {"path": str(corpus), "label_column": "label"},
        "shards": {"min_shards": N_SHARDS, "min_free_gb": 0.01},
        "executor": {
            "kind": "ray",
            "n_actors": 2,
            "num_cpus": 0.5,
            "n_retries": 30,
            "second_copy_after": None,
        },
    }
    settings = build(ExperimentSettings, values)
    return replace(settings, on_existing="resume")


def _n_committed(run: Path) -> int:
    journal = run / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _wait(condition: Callable[[], bool], timeout_s: float = 300) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the trial did not get that far")
        time.sleep(0.02)
