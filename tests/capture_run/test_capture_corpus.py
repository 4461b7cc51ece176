"""A corpus becomes a run folder: the same bytes every time, continued after a stop, refused when unfit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data.capture_run import capture_corpus
from easysteer_data.errors import CorpusError, SettingsError, SettingsMismatchError
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards import open_run
from easysteer_data.shards.manifest import read_manifest
from tests import oracle


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [
        {"text": f"The city of {'x' * (i % 7)} is {i}.", "label": i % 2, "group": i // 2} for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tiny_model: Path, corpus: Path) -> ExperimentSettings:
    return build(
        ExperimentSettings,
        {
            "name": "test",
            "out": "unused",
            "progress": False,
            "model": {"path": str(tiny_model), "dtype": "float32", "max_model_len": 128},
            "corpus": {"path": str(corpus), "label_column": "label", "group_column": "group"},
            "engine": {"enforce_eager": True, "in_process": True, "max_num_seqs": 8},
            "shards": {"min_shards": 3},
        },
    )


@pytest.fixture(autouse=True)
def _alone(engines: Any) -> None:
    engines.close()


def files(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def rows_and_statistics(run: Path) -> dict[str, bytes]:
    """Every file but those that tell when and how fast the run was made."""
    timed = {"run.json", "manifest.json", "measured.jsonl", "journal.jsonl"}
    return {name: data for name, data in files(run).items() if name not in timed}


def test_every_row_is_stored_and_equals_hugging_face(
    settings: ExperimentSettings, tmp_path: Path, tiny_model: Path
) -> None:
    outcome = capture_corpus(settings, tmp_path / "run")
    run = open_run(outcome.run)
    prompts = run.prompts().to_pylist()
    assert outcome.n_prompts == len(prompts) == 40
    assert run.n_rows == outcome.n_rows == sum(prompt["n_prompt_tokens"] for prompt in prompts)
    values = run.gather("hidden_states", run.layers, torch.arange(run.n_rows))
    for prompt in prompts:
        mine = run.index.prompt == prompt["index"]
        assert run.index.token_id[mine].tolist() == prompt["token_ids"]
        expected = torch.stack(oracle.block_outputs(tiny_model, prompt["token_ids"]), dim=1)
        assert oracle.relative_difference(values[mine], expected) < 1e-4
    assert run.labels is not None
    assert run.labels.tolist() == [prompts[i]["index"] % 2 for i in run.index.prompt.tolist()]


def test_the_same_settings_give_the_same_bytes_with_another_batch_size(
    settings: ExperimentSettings, tmp_path: Path
) -> None:
    capture_corpus(settings, tmp_path / "a")
    other = replace(settings, engine=replace(settings.engine, max_num_seqs=3))
    capture_corpus(other, tmp_path / "b")
    assert rows_and_statistics(tmp_path / "a") == rows_and_statistics(tmp_path / "b")


def test_a_finished_run_is_not_captured_again(settings: ExperimentSettings, tmp_path: Path) -> None:
    first = capture_corpus(settings, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    second = capture_corpus(settings, tmp_path / "run")
    assert (first.n_shards_made, second.n_shards_made) == (3, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_stopped_run_is_continued_to_the_same_bytes(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from easysteer_data.shards import RunWriter

    write, written = RunWriter.write, []

    def stop_at_the_second(self: RunWriter, shard: Any) -> Any:
        if written:
            raise KeyboardInterrupt
        written.append(shard.number)
        return write(self, shard)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "write", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            capture_corpus(settings, tmp_path / "stopped")
    assert capture_corpus(settings, tmp_path / "stopped").n_shards_made == 2
    capture_corpus(settings, tmp_path / "whole")
    assert files(tmp_path / "whole").keys() == files(tmp_path / "stopped").keys()
    assert rows_and_statistics(tmp_path / "whole") == rows_and_statistics(tmp_path / "stopped")
    assert read_manifest(tmp_path / "whole").shards == read_manifest(tmp_path / "stopped").shards


def test_a_folder_of_other_settings_is_refused_with_the_difference(
    settings: ExperimentSettings, tmp_path: Path
) -> None:
    capture_corpus(settings, tmp_path / "run")
    before = files(tmp_path / "run")
    other = replace(settings, capture=replace(settings.capture, storage="float16"))
    with pytest.raises(SettingsMismatchError, match=r"capture\.storage.*float32.*float16"):
        capture_corpus(other, tmp_path / "run")
    assert files(tmp_path / "run") == before


def with_corpus(settings: ExperimentSettings, **changes: Any) -> ExperimentSettings:
    return replace(settings, corpus=replace(settings.corpus, **changes))


def test_bad_input_is_refused_before_anything_is_written(
    settings: ExperimentSettings, tmp_path: Path
) -> None:
    long = tmp_path / "long.txt"
    long.write_text("short\n" + "word " * 300 + "\n")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    plain = {"label_column": None, "group_column": None}
    layers = replace(settings.capture, layers=(1, 3))
    model = replace(settings.model, path=str(tmp_path / "nowhere"))
    cases: list[tuple[ExperimentSettings, type[Exception], str]] = [
        (with_corpus(settings, path=str(tmp_path / "none.jsonl")), CorpusError, "none.jsonl"),
        (with_corpus(settings, text_column="statement"), CorpusError, r"statement.*text"),
        (with_corpus(settings, path=str(empty), **plain), CorpusError, "empty"),
        (with_corpus(settings, path=str(long), **plain), CorpusError, r"long\.txt:2.*127"),
        (replace(settings, capture=layers), SettingsError, r"\[3\].*layers 0 to 2"),
        (replace(settings, model=model), SettingsError, "nowhere"),
        (replace(settings, select={"prompt_position": [0]}), SettingsError, "prompt_positions"),
    ]
    for case, error, message in cases:
        with pytest.raises(error, match=message):
            capture_corpus(case, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_last_token_rows_of_generated_runs_keep_their_text(
    settings: ExperimentSettings, tmp_path: Path
) -> None:
    select = {"prompt_positions": [-1], "generation_positions": [0]}
    asked = replace(settings, select=select, capture=replace(settings.capture, max_tokens=3, layers=(1,)))
    run = open_run(capture_corpus(asked, tmp_path / "run").run)
    first = run.prompts().to_pylist()[0]
    n_prompt = first["n_prompt_tokens"]
    assert run.layers == (1,)
    assert 1 <= len(first["generated_token_ids"]) <= 3
    assert run.index.position[run.index.prompt == 0].tolist() == [n_prompt - 1, n_prompt][: first["n_rows"]]
