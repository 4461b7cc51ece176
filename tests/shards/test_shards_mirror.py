"""A copy of some layers of a remote run is a run of these layers, fetched once and checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import mirror_run, open_run
from easysteer_data.shards.remote_files import RemoteFiles
from tests.runs import MadeRows, random_rows, write_run
from tests.shards.http_files import served_folder


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows()


@pytest.fixture
def remote(rows: MadeRows, tmp_path: Path) -> Path:
    return write_run(tmp_path / "remote", rows)


@pytest.mark.parametrize("scheme", ["file", "pipe", "http"])
def test_the_copy_holds_the_asked_layers_and_all_their_rows(
    rows: MadeRows, remote: Path, tmp_path: Path, scheme: str
) -> None:
    with served_folder(remote) as server:
        roots = {"file": remote.as_uri(), "pipe": f"pipe:cat {remote}/{{}}", "http": server.url}
        copy = mirror_run(RemoteFiles(roots[scheme]), tmp_path / "copies", {"hidden_states": [5, 0]})
        assert not any("layer-002" in name for name, _ in server.asked)
    run = open_run(copy)
    assert run.streams == {"hidden_states": (0, 5)}
    assert not (copy / "hidden_states" / "layer-002").exists()
    every = torch.arange(run.n_rows)
    np.testing.assert_array_equal(run.gather("hidden_states", [0, 5], every), rows.x[:, [0, 2]])
    assert run.prompts().num_rows == len(rows.n_rows)
    assert run.statistics("hidden_states", 5).n_rows == len(rows.x)


def test_a_copy_is_fetched_once_and_its_gaps_are_filled(remote: Path, tmp_path: Path) -> None:
    files = RemoteFiles(remote.as_uri())
    copy = mirror_run(files, tmp_path / "copies")
    lost = copy / "hidden_states" / "layer-002" / "shard-000001.tar"
    kept = {path: path.stat().st_mtime_ns for path in copy.rglob("*.tar") if path != lost}
    lost.unlink()
    assert mirror_run(files, tmp_path / "copies") == copy
    assert lost.read_bytes() == (remote / lost.relative_to(copy)).read_bytes()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    manifest = (remote / "manifest.json").read_bytes()
    shutil.rmtree(remote)
    remote.mkdir()
    (remote / "manifest.json").write_bytes(manifest)
    assert open_run(mirror_run(files, tmp_path / "copies")).n_rows > 0


@pytest.mark.parametrize("ranges", [True, False])
def test_a_copy_from_a_server_that_drops_answers_has_the_bytes_that_are_served(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("easysteer_data.shards.remote_files._BLOCK_BYTES", 1000)
    with served_folder(remote) as server:
        server.drop_every, server.ranges = 4, ranges
        copy = mirror_run(RemoteFiles(server.url), tmp_path / "copies")
    tars = sorted(remote.rglob("*.tar"))
    assert [(copy / tar.relative_to(remote)).read_bytes() for tar in tars] == [t.read_bytes() for t in tars]
    assert server.n_dropped > 2
    parts = [part for name, part in server.asked if name.endswith(".tar")]
    assert {part is not None for part in parts} == {ranges}
    # Which answers were dropped depends on the threads: of tars, or of the small files beside them.
    assert len(server.asked) - len(set(server.asked)) >= server.n_dropped


def test_a_damaged_file_is_named_and_not_kept(remote: Path, tmp_path: Path) -> None:
    bad = remote / "hidden_states" / "layer-002" / "shard-000001.tar"
    data = bytearray(bad.read_bytes())
    data[700] ^= 1
    bad.write_bytes(data)
    with pytest.raises(BadShardError, match=r"layer-002/shard-000001\.tar: altered"):
        mirror_run(RemoteFiles(remote.as_uri()), tmp_path / "copies")
    assert not list((tmp_path / "copies").rglob("layer-002/*shard-000001*"))
    assert not list((tmp_path / "copies").rglob("manifest.json"))


def test_what_the_run_does_not_hold_is_refused(remote: Path, tmp_path: Path) -> None:
    files = RemoteFiles(remote.as_uri())
    with pytest.raises(RunError, match=r"holds no layer \[3\] of hidden_states"):
        mirror_run(files, tmp_path / "copies", {"hidden_states": [3]})
    with pytest.raises(RunError, match="holds no layer at all of router_logits"):
        mirror_run(files, tmp_path / "copies", {"router_logits": None})
