"""A Ray cluster's actors make the same run as one process, whatever becomes of some of them.

The actors make their rows up, so that one starts in a moment; the last test has real engines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import ray

from easysteer_data.capture_run import CapturePlan, capture_corpus, plan_capture
from easysteer_data.capture_run.executors.messages import (
    plan_message,
    plan_of,
    prompts_of,
    selects_of,
    task_message,
)
from easysteer_data.capture_run.executors.ray_capture import RayCapture
from easysteer_data.capture_run.executors.ray_pool import RayPool, actor_resources
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.errors import EngineError, ProofError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import RunHeader, RunWriter
from easysteer_data.shards.object_store import ObjectStore
from easysteer_data.shards.remote_writer import RemoteRunWriter, Spool
from tests.capture_run.ray_actors import MadeRowsActor, made_shard
from tests.shards.made import files_of
from tests.shards.s3 import OPTIONS, s3_server

N_PROMPTS, N_SHARDS = 120, 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,  # a count that Ray keeps; nothing looks for the GPUs
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


def experiment(model: Path, folder: Path, **groups: Any) -> ExperimentSettings:
    corpus = folder / "corpus.jsonl"
    words = random.Random(0)
    rows = [{"text": "x " * words.randint(1, 30) + str(i), "label": i % 2} for i in range(N_PROMPTS)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {
        "name": "test",
        "out": str(folder),
        "progress": False,
        "model": {"path": str(model), "dtype": "float32", "max_model_len": 128},
        "corpus": {"path": str(corpus), "label_column": "label"},
        "engine": {
            "enforce_eager": True,
            "in_process": True,
            "max_num_seqs": 8,
            "options": {"kv_cache_memory_bytes": 2**26},
        },
        "shards": {"min_shards": N_SHARDS, "min_free_gb": 0.01},
        "executor": {"kind": "ray", "n_actors": 2, "num_cpus": 0.5, "second_copy_after": None},
    }
    return build(ExperimentSettings, values | groups)


@dataclass
class Scene:
    """A capture by made-up actors, and the run that it must become.

    Attributes:
        plan: the capture.
        header: of both runs.
        run: the folder that the actors' shards go into.
        expected: the files of a run that was written by one process.
    """

    plan: CapturePlan
    header: RunHeader
    run: Path
    expected: dict[str, bytes]

    def capture(self, **executor: Any) -> RayPool:
        """Capture what is left with some executor settings; returns the pool that did it."""
        settings = self.plan.settings
        settings = replace(settings, executor=replace(settings.executor, **executor))
        plan = replace(self.plan, settings=settings)
        with RayPool(plan, MadeRowsActor) as pool, RunWriter.open(self.run, self.header) as writer:
            self.pool = pool
            todo = [number for number in range(len(self.header.plan)) if number not in writer.done]
            RayCapture(plan, pool, writer, ShardMeasurements(self.run)).run(todo)
            writer.close()
        return pool

    def mishap(self, *names: str) -> None:
        for name in names:
            Path(self.plan.settings.out, name).touch()

    def n_committed(self) -> int:
        return (self.run / "journal.jsonl").read_bytes().count(b"\n")

    def check(self) -> None:
        assert comparable(self.run) == self.expected
        assert not self.run.with_name("run.staging").exists()


def comparable(run: Path) -> dict[str, bytes]:
    """A run's files; the journal's lines in any order, without the times that it took."""
    files = files_of(run)
    files["journal.jsonl"] = b"\n".join(sorted(files["journal.jsonl"].splitlines()))
    files.pop("measured.jsonl", None)
    return files


@pytest.fixture
def scene(tiny_model: Path, tmp_path: Path) -> Scene:
    plan = plan_capture(experiment(tiny_model, tmp_path))
    header = plan.header(plan.shapes() or {})
    with RunWriter.open(tmp_path / "whole", header) as writer:
        for number, (start, stop) in enumerate(header.plan):
            writer.write(made_shard(number, [plan.prompts[i] for i in range(start, stop)], header))
        writer.close()
    return Scene(plan, header, tmp_path / "run", comparable(tmp_path / "whole"))


def test_what_crosses_to_an_actor_is_plain_and_keeps_plan_and_prompts(scene: Scene) -> None:
    plan = scene.plan
    message = json.loads(json.dumps([plan_message(plan), task_message(plan, 3, scene.header.plan[3])]))
    there, task = plan_of(message[0]), message[1]
    assert there.settings == plan.settings
    assert there.shapes() == plan.shapes()
    start, stop = scene.header.plan[3]
    assert (task["number"], task["start"]) == (3, start)
    assert [replace(p, token_ids=tuple(p.token_ids)) for p in prompts_of(task)] == [
        replace(plan.prompts[i], token_ids=tuple(plan.prompts[i].token_ids)) for i in range(start, stop)
    ]
    assert selects_of(task) == [plan.selects[i] for i in range(start, stop)]


@pytest.mark.usefixtures("cluster")
def test_a_run_of_actors_that_die_or_fail_or_dawdle_is_the_same_run(scene: Scene) -> None:
    scene.mishap("die-3", "full-7", "slow-19")
    pool = scene.capture(second_copy_after=3.0)
    scene.check()
    assert pool.n_started >= 4  # two, and one for each that was lost


@pytest.mark.usefixtures("cluster")
def test_actors_write_to_an_object_store_as_to_a_folder_whatever_becomes_of_them(scene: Scene) -> None:
    scene.mishap("die-3", "full-7")
    with s3_server() as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", **OPTIONS}
        url, spool = "s3://bucket/run", Path(scene.plan.settings.out) / "spool"
        upload = replace(scene.plan.settings.upload, options=options, spool=str(spool))
        plan = replace(scene.plan, settings=replace(scene.plan.settings, upload=upload))
        store = ObjectStore(url, options)
        for part in (range(12), range(12, N_SHARDS)):  # stopped and continued
            with (
                RayPool(plan, MadeRowsActor) as pool,
                RemoteRunWriter.open(store, scene.header, Spool(spool / "driver", 2**30)) as writer,
            ):
                assert writer.done == frozenset(range(part.start))
                store.put("staging/killed-actor-0000/left.tar", b"by a driver that was killed")
                RayCapture(plan, pool, writer, ShardMeasurements(spool)).run(part)
        with RemoteRunWriter.open(store, scene.header, Spool(spool / "driver", 2**30)) as writer:
            writer.close()
        found = {name: store.read(name) or b"" for name in store.sizes("")}
    of_kind = {"run.json", "manifest.json", "journal.jsonl"}
    journal = sorted(data for name, data in found.items() if name.startswith("journal/"))
    assert journal == sorted(scene.expected["journal.jsonl"].splitlines())
    objects = {name: data for name, data in found.items() if not name.startswith("journal/")}
    assert {k: v for k, v in objects.items() if k not in of_kind} == {
        k: v for k, v in scene.expected.items() if k not in of_kind
    }
    assert json.loads(objects["manifest.json"]) == json.loads(scene.expected["manifest.json"])
    assert not list(spool.rglob("*.tar"))


@pytest.mark.usefixtures("cluster")
def test_actors_killed_at_random_moments_lose_and_double_nothing(scene: Scene) -> None:
    chance, kills = random.Random(0), list[int]()

    def kill_some() -> None:
        while len(kills) < 4:
            time.sleep(chance.uniform(0.1, 0.5))
            pids = [
                actor.said["pid"]
                for actor in getattr(scene, "pool", RayPool(scene.plan)).actors
                if actor.said
            ]
            if pids and pids[-1] not in kills:
                kills.append(pids[-1])
                os.kill(pids[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill_some, daemon=True)
    killer.start()
    Path(scene.plan.settings.out, "pause").write_text("0.3")
    scene.capture(n_retries=9)
    assert len(kills) >= 2
    scene.check()


@pytest.mark.usefixtures("cluster")
def test_a_shard_that_no_actor_survives_ends_in_a_clear_error_and_the_rest_is_kept(scene: Scene) -> None:
    scene.mishap("always-die-5")
    with pytest.raises(
        EngineError, match=r"shard \d+ was lost 2 times, the last time: actor \d+ \(process \d+"
    ):
        scene.capture(n_retries=1, n_actors=1)
    assert not scene.run.with_name("run.staging").exists()
    assert 0 < scene.n_committed() < N_SHARDS
    Path(scene.plan.settings.out, "always-die-5").unlink()
    scene.mishap("wrong-19")
    with pytest.raises(ProofError, match="told to be wrong"):
        scene.capture(n_actors=1)
    scene.capture(n_actors=1)
    scene.check()


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_room_and_actors_that_can_not_begin_are_told(scene: Scene) -> None:
    with pytest.raises(
        EngineError, match=r"no actor began within executor.start_timeout_s=1: the cluster has"
    ):
        scene.capture(gpus_per_rank=8, start_timeout_s=1)
    scene.mishap("always-begin-0")
    with pytest.raises(EngineError, match=r"2 actors in a row could not begin: actor 1, .*told to fail"):
        scene.capture(n_retries=1, n_actors=1)


@pytest.mark.usefixtures("cluster")
def test_a_tensor_parallel_engine_takes_the_gpus_of_its_ranks_on_one_machine(scene: Scene) -> None:
    settings = scene.plan.settings
    engine = replace(settings.engine, options={"tensor_parallel_size": 2})
    scene.plan = replace(scene.plan, settings=replace(settings, engine=engine))
    executor = replace(settings.executor, gpus_per_rank=1, num_cpus=6, resources={"h200": 4})
    asked = replace(scene.plan, settings=replace(scene.plan.settings, executor=executor))
    assert actor_resources(asked) == {"CPU": 6, "GPU": 2, "h200": 4}
    scene.capture(gpus_per_rank=1, n_actors=1)
    scene.check()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_engines_make_the_bytes_of_one(tiny_model: Path, tmp_path: Path, engines: Any) -> None:
    engines.close()
    asked = experiment(tiny_model, tmp_path, shards={"min_shards": 6, "min_free_gb": 0.01})
    local = replace(asked, executor=replace(asked.executor, kind="local"))
    assert capture_corpus(asked, tmp_path / "ray").n_shards_made == 6
    assert capture_corpus(local, tmp_path / "local").n_shards_made == 6
    timed = {"run.json", "manifest.json", "journal.jsonl"}
    one, other = (comparable(tmp_path / name) for name in ("ray", "local"))
    assert {k: v for k, v in one.items() if k not in timed} == {
        k: v for k, v in other.items() if k not in timed
    }
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("ray", "local")]
    for manifest in manifests:
        del manifest["provenance"], manifest["measured"]["wall_s"]
    assert manifests[0] == manifests[1]
