"""A capture whose output is a URL: the same run as in a folder, left alone when it is finished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.capture_run import capture_corpus
from easysteer_data.errors import SettingsError
from easysteer_data.run_folders import local_out, output_to_capture, run_folder
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards.object_store import ObjectStore
from tests.shards.made import files_of
from tests.shards.s3 import OPTIONS, s3_server


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_server() as port:
        yield {"endpoint": f"http://127.0.0.1:{port}", **OPTIONS}


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path, options: dict[str, Any]) -> ExperimentSettings:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"text": f"The city of {'x' * (i % 7)} is {i}.", "label": i % 2} for i in range(30)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "name": "test",
        "out": "s3://bucket/run/",
        "progress": False,
        "model": {"path": str(tiny_model), "dtype": "float32", "max_model_len": 128},
        "corpus": {"path": str(corpus), "label_column": "label"},
        "engine": {"enforce_eager": True, "in_process": True, "max_num_seqs": 8},
        "shards": {"min_shards": 4, "min_free_gb": 0.01},
        "upload": {"options": options, "spool": str(tmp_path / "spool")},
    }
    return build(ExperimentSettings, values)


def test_a_run_captured_to_a_url_is_the_one_captured_to_a_folder(
    settings: ExperimentSettings, options: dict[str, Any], tmp_path: Path, tiny_model: Path, engines: Any
) -> None:
    llm = engines.get(tiny_model, max_model_len=128)
    url = output_to_capture(settings, "a1")
    assert url == "s3://bucket/run/capture"
    outcome = capture_corpus(settings, url, llm=llm)
    assert str(outcome) == f"{url}: captured 30 prompts, {outcome.n_rows} rows a layer"
    assert capture_corpus(settings, url, llm=llm).n_shards_made == 0
    capture_corpus(settings, tmp_path / "folder", llm=llm)
    store = ObjectStore("s3://bucket/run/capture", options)
    timed = {"run.json", "manifest.json", "measured.jsonl", "journal.jsonl"}
    objects = {name: store.read(name) for name in store.sizes("") if not name.startswith("journal/")}
    files = files_of(tmp_path / "folder")
    assert {k: v for k, v in objects.items() if k not in timed} == {
        k: v for k, v in files.items() if k not in timed
    }
    manifests = [json.loads(objects["manifest.json"] or b""), json.loads(files["manifest.json"])]
    for manifest in manifests:
        del manifest["provenance"], manifest["measured"]["wall_s"]
    assert manifests[0] == manifests[1]
    assert not list((tmp_path / "spool").rglob("*.tar"))


def test_slices_to_a_url_are_refused_and_other_stages_say_how_a_url_is_read(
    settings: ExperimentSettings,
) -> None:
    with pytest.raises(SettingsError) as caught:
        capture_corpus(replace(settings, shard_slice="1/2"), "s3://bucket/run/capture")
    assert str(caught.value) == (
        "s3://bucket/run/capture: slices are written into folders; give one that they share as out, and copy "
        "the finished run"
    )
    with pytest.raises(SettingsError, match=r"data\.root=s3://bucket/run/capture"):
        run_folder(settings)
    assert local_out(settings.out, settings.name) == "outputs/test"
