"""Shards are begun while their rows' step still runs, and the run has the bytes of one that was not."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.capture_run import capture_corpus
from easysteer_data.engine.outlet import Outlet
from easysteer_data.engine.recorder import Recorder
from easysteer_data.engine.session import CaptureSession
from easysteer_data.errors import ProofError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import RunWriter
from easysteer_data.shards.shard_work import ShardWork
from tests.shards.made import files_of

TIMED = {"run.json", "manifest.json", "measured.jsonl", "journal.jsonl"}


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> ExperimentSettings:
    path = tmp_path / "corpus.jsonl"
    rows = [{"text": f"The city of {'x' * (i % 7)} is {i}."} for i in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build(
        ExperimentSettings,
        {
            "name": "test",
            "out": "unused",
            "progress": False,
            "model": {"path": str(tiny_model), "dtype": "float32", "max_model_len": 128},
            "corpus": {"path": str(path)},
            "engine": {"enforce_eager": True, "in_process": True, "max_num_seqs": 24},
            "select": {"prompt": "all"},
            "shards": {"min_shards": 8},
        },
    )


@pytest.fixture(autouse=True)
def _alone(engines: Any) -> None:
    engines.close()


class Watch:
    """What was begun, each with whether a step was running; the engine gives the driver time to see it.

    Attributes:
        begun: (shard, layer id, whether a step was running) of each layer that was begun.
        reused: shards that were written with what had begun.
        asked: whether anything was to be begun before it was proven.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun: set[tuple[int, int, bool]] = set()
        self.reused: list[int] = []
        self.asked = False
        self._runs = False
        patch.setattr(CaptureSession, "in_place", ("cpu",))
        patch.setattr("easysteer_data.engine.session._IDLE_S", {"cpu": 0.001})
        patch.setattr(Recorder, "_goes_early", lambda _, n_rows: n_rows > 0)
        place, end, put, ask, begin, is_of = (
            Recorder.place_rows,
            Recorder.end_step,
            Outlet.put_layer,
            RunWriter.begin,
            ShardWork.begin,
            ShardWork.is_of,
        )

        def place_rows(recorder: Recorder, geometry: Any) -> None:
            place(recorder, geometry)
            self._runs = True

        def end_step(recorder: Recorder) -> None:
            self._runs = False
            end(recorder)

        def put_layer(outlet: Outlet, *rows: Any) -> None:
            put(outlet, *rows)
            time.sleep(0.05)

        def ask_to_begin(writer: RunWriter, *shard: Any) -> ShardWork | None:
            self.asked = True
            return ask(writer, *shard)

        def begin_layer(work: ShardWork, key: Any) -> None:
            if key not in work._layers:
                self.begun.add((work._shard.number, key[1], self._runs))
            begin(work, key)

        def is_of_shard(work: ShardWork, shard: Any) -> bool:
            same = is_of(work, shard)
            self.reused += [shard.number] if same else []
            return same

        patch.setattr(Recorder, "place_rows", place_rows)
        patch.setattr(Recorder, "end_step", end_step)
        patch.setattr(Outlet, "put_layer", put_layer)
        patch.setattr(RunWriter, "begin", ask_to_begin)
        patch.setattr(ShardWork, "begin", begin_layer)
        patch.setattr(ShardWork, "is_of", is_of_shard)


def data_of(run: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(run).items() if name not in TIMED}


@pytest.mark.parametrize(
    "changed",
    [{}, {"streams": ("hidden_states", "attention_heads")}, {"rows": False}],
    ids=["rows", "two streams", "statistics only"],
)
def test_layers_are_begun_before_their_step_has_ended(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    settings = replace(settings, capture=replace(settings.capture, **changed))
    capture_corpus(settings, tmp_path / "plain")
    with monkeypatch.context() as patched:
        patched.setattr("easysteer_data.shards.layer_tar.SMALL_BYTES", 1)  # files are written in place
        watch = Watch(patched)
        capture_corpus(settings, tmp_path / "early")
    assert watch.asked
    assert data_of(tmp_path / "early") == data_of(tmp_path / "plain")
    # The engine begins with what has come: a shard in two steps is not seen whole in either.
    assert len(watch.reused) >= 6
    first_layer = min(layer_id for _, layer_id, _ in watch.begun)
    assert {(number, first_layer, True) for number in watch.reused} <= watch.begun


def test_a_run_that_generates_is_not_begun_early(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generating = replace(settings, capture=replace(settings.capture, max_tokens=3))
    with monkeypatch.context() as patched:
        watch = Watch(patched)
        capture_corpus(generating, tmp_path / "run")
    assert not watch.asked
    assert not watch.reused


def test_rows_that_are_not_proven_leave_no_file_of_a_shard_that_was_begun(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_corpus(settings, tmp_path / "plain")
    with monkeypatch.context() as patched:
        watch = Watch(patched)
        patched.setattr(
            "easysteer_data.capture_run.prover.prove",
            lambda *_: (_ for _ in ()).throw(ProofError("position 3 is wrong")),
        )
        with pytest.raises(ProofError, match="position 3 is wrong"):
            capture_corpus(settings, tmp_path / "run")
    assert any(runs for _, _, runs in watch.begun)
    assert not list((tmp_path / "run").rglob("*.tar"))
    assert not list((tmp_path / "run").rglob("*.partial"))
    capture_corpus(settings, tmp_path / "run")
    assert data_of(tmp_path / "run") == data_of(tmp_path / "plain")


def test_no_shard_is_committed_by_being_begun(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        watch = Watch(patched)

        def stop(_writer: RunWriter, _shard: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(RunWriter, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            capture_corpus(settings, tmp_path / "run")
    assert any(runs for _, _, runs in watch.begun)
    assert not list((tmp_path / "run").rglob("*.tar"))
    assert capture_corpus(settings, tmp_path / "run").n_shards_made == 8
