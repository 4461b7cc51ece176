"""The real capture stage, stopped at any moment in any way, is continued to the bytes of an unstopped one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.shards.manifest import read_manifest
from tests.capture_run.killing import n_committed, start, wait_until

N_SHARDS = 24


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[str]:
    corpus = tmp_path_factory.mktemp("corpus") / "prompts.jsonl"
    words = random.Random(0)
    rows = [{"text": "x " * words.randint(1, 40) + str(i), "label": i % 2} for i in range(240)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "model=folder",
        f"model.path={tiny_model}",
        "model.dtype=float32",
        "corpus=jsonl",
        f"corpus.path={corpus}",
        "corpus.label_column=label",
        "select=prompt",
        "engine.max_num_seqs=4",
        "engine.options.kv_cache_memory_bytes=67108864",
        f"shards.min_shards={N_SHARDS}",
        "shards.min_free_gb=0.01",
        "progress=false",
    ]


@pytest.fixture(scope="module")
def unstopped(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unstopped")
    capture(arguments, out)
    return out / "capture"


def capture(arguments: list[str], out: Path) -> str:
    process = start([*arguments, f"out={out}"], out / "log.txt")
    process.join()
    log = (out / "log.txt").read_text()
    assert process.exitcode == 0, log
    return log


def contents(run: Path) -> dict[str, bytes]:
    """The run's tars, tables, indexes and statistics."""
    timed = {"run.json", "manifest.json", "measured.jsonl", "journal.jsonl"}
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in timed)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def written(run: Path) -> dict[str, int]:
    """When each file of a committed shard was written."""
    committed = [json.loads(line) for line in (run / "journal.jsonl").read_bytes().split(b"\n")[:-1]]
    names = [file["name"] for entry in committed for file in entry["files"]]
    return {name: (run / name).stat().st_mtime_ns for name in names}


def same_run(run: Path, unstopped: Path) -> None:
    assert contents(run) == contents(unstopped)
    assert read_manifest(run).shards == read_manifest(unstopped).shards
    assert read_manifest(run).statistics == read_manifest(unstopped).statistics


def kill_and_continue(arguments: list[str], out: Path, unstopped: Path, n_kills: int, seed: int) -> int:
    """Kill captures at random moments, starting anew when one is finished; how many kills hit one running."""
    moments = random.Random(seed)
    run, n_hit, kept = out / "capture", 0, dict[str, int]()
    for _ in range(n_kills):
        process = start([*arguments, f"out={out}"], out / "log.txt")
        if moments.random() < 0.2:  # while the engine starts
            time.sleep(moments.uniform(0, 3))
        else:  # soon after one of the next shards
            target = n_committed(run) + moments.randrange(4)
            wait_until(lambda: n_committed(run) >= target, process)  # noqa: B023 - called at once
            time.sleep(moments.uniform(0, 0.05))
        n_hit += process.is_alive()
        process.kill()
        process.join()
        if (run / "journal.jsonl").exists():
            now = written(run)
            assert {name: now[name] for name in kept} == kept, "a finished shard was done again"
            kept = now
        if (run / "manifest.json").exists():
            same_run(run, unstopped)
            shutil.rmtree(run)
            kept = {}
    capture(arguments, out)
    same_run(run, unstopped)
    return n_hit


def test_a_capture_killed_at_twenty_random_moments_ends_with_the_same_bytes(
    arguments: list[str], unstopped: Path, tmp_path: Path
) -> None:
    assert kill_and_continue(arguments, tmp_path, unstopped, 20, seed=0) >= 15


@pytest.mark.long
def test_a_capture_killed_at_a_hundred_random_moments_ends_with_the_same_bytes(
    arguments: list[str], unstopped: Path, tmp_path: Path
) -> None:
    assert kill_and_continue(arguments, tmp_path, unstopped, 100, seed=1) >= 75


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_capture_that_is_told_to_stop_says_what_is_kept_and_how_to_go_on(
    number: int, code: int, word: str, arguments: list[str], unstopped: Path, tmp_path: Path
) -> None:
    process = start([*arguments, f"out={tmp_path}"], tmp_path / "log.txt")
    wait_until(lambda: n_committed(tmp_path / "capture") >= 2, process)
    os.kill(process.pid or 0, number)
    process.join()
    log = (tmp_path / "log.txt").read_text()
    assert process.exitcode == code, log
    n_done = n_committed(tmp_path / "capture")
    assert 2 <= n_done < N_SHARDS
    assert f"{word}; {tmp_path / 'capture'}: {n_done} of {N_SHARDS} shards are finished and kept" in log
    assert "the same command continues" in log
    assert "Traceback" not in log
    capture(arguments, tmp_path)
    same_run(tmp_path / "capture", unstopped)


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_terminal_that_stops_the_engines_process_too_ends_as_cleanly(
    number: int, code: int, arguments: list[str], unstopped: Path, tmp_path: Path
) -> None:
    process = start([*arguments, "engine.in_process=false", f"out={tmp_path}"], tmp_path / "log.txt")
    wait_until(lambda: n_committed(tmp_path / "capture") >= 2, process)
    os.killpg(process.pid or 0, number)
    process.join(60)
    log = (tmp_path / "log.txt").read_text()
    assert process.exitcode == code, log
    assert f"of {N_SHARDS} shards are finished and kept; the same command continues" in log
    capture(arguments, tmp_path)
    same_run(tmp_path / "capture", unstopped)


def test_a_second_process_on_the_same_output_is_refused_with_the_owner(
    arguments: list[str], unstopped: Path, tmp_path: Path
) -> None:
    first = start([*arguments, f"out={tmp_path}"], tmp_path / "log.txt")
    wait_until(lambda: n_committed(tmp_path / "capture") >= 1, first)
    os.kill(first.pid or 0, signal.SIGSTOP)
    try:
        second = start([*arguments, f"out={tmp_path}"], tmp_path / "second.txt")
        second.join()
    finally:
        os.kill(first.pid or 0, signal.SIGCONT)
    log = (tmp_path / "second.txt").read_text()
    assert second.exitcode == 1
    assert "RunError" in log
    assert f"process {first.pid}" in log
    first.join()
    assert first.exitcode == 0
    same_run(tmp_path / "capture", unstopped)


def test_an_error_in_the_engine_keeps_the_finished_shards(
    arguments: list[str], unstopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: Any
) -> None:
    from easysteer_data.capture_run import capture_corpus
    from easysteer_data.engine.feed import Feed
    from easysteer_data.errors import EngineError
    from easysteer_data.settings import ExperimentSettings

    engines.close()
    settings: ExperimentSettings = settings_of_arguments([*arguments, f"out={tmp_path}"])
    run_feed = Feed.run

    def fail_at_the_tenth_step(self: Feed, requests: Any) -> Any:
        for step, finished in enumerate(run_feed(self, requests)):
            if step == 10:
                raise EngineError("made for a test")
            yield finished

    with monkeypatch.context() as patched:
        patched.setattr(Feed, "run", fail_at_the_tenth_step)
        with pytest.raises(EngineError, match="made for a test"):
            capture_corpus(settings, tmp_path / "capture")
    assert 0 < n_committed(tmp_path / "capture") < N_SHARDS
    capture_corpus(settings, tmp_path / "capture")
    same_run(tmp_path / "capture", unstopped)


def settings_of_arguments(arguments: list[str]) -> Any:
    import hydra

    from pipelines.stage import CONF, settings_of

    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        return settings_of(hydra.compose("capture", overrides=arguments))
