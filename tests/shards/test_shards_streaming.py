"""Rows of a run on a server that drops connections: the same rows, in equally many batches on every rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from easysteer_data.errors import BadShardError, RunError, SettingsError
from easysteer_data.shards import open_run
from easysteer_data.shards.remote_files import FileCache, RemoteFiles
from easysteer_data.shards.remote_run import RemoteRun
from easysteer_data.shards.streaming import StreamedRows, plan_batches, process_of_each
from easysteer_data.types import Split
from tests.runs import MadeRows, random_rows, write_run
from tests.shards.http_files import Served, served_folder


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows(n_prompts=60)


@pytest.fixture(scope="module")
def folder(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows, n_shards=5)


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    with served_folder(folder) as served:
        served.drop_every = 3
        yield served


def places(rows: MadeRows, batches: list[Any]) -> list[int]:
    place = {
        pair: row for row, pair in enumerate(zip(rows.prompt.tolist(), rows.position.tolist(), strict=True))
    }
    return [
        place[pair]
        for batch in batches
        for pair in zip(batch["prompt"].tolist(), batch["position"].tolist(), strict=True)
    ]


def chosen(rows: MadeRows, split: Split = "train") -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(len(rows.x)), rows.rows_of(split))


@pytest.mark.parametrize(("n_ranks", "num_workers"), [(1, 0), (2, 0), (3, 0), (2, 2)])
def test_every_rank_gets_equally_many_batches_and_each_row_once(
    rows: MadeRows, folder: Path, n_ranks: int, num_workers: int
) -> None:
    run = RemoteRun(RemoteFiles(folder.as_uri()))
    orders = []
    for epoch in range(2):
        served, lengths = [], set()
        for rank in range(n_ranks):
            data = StreamedRows(
                run,
                "hidden_states",
                2,
                chosen(rows),
                batch_size=8,
                buffer_rows=20,
                n_ranks=n_ranks,
                rank=rank,
                num_workers=num_workers,
            )
            data.begin_at(epoch)
            batches = list(DataLoader(data, batch_size=None, num_workers=num_workers))
            assert len(batches) == len(data)
            assert max(len(batch["x"]) for batch in batches) <= 8
            lengths.add(len(batches))
            served += batches
        order = places(rows, served)
        assert len(lengths) == 1
        assert sorted(order) == rows.rows_of("train").tolist()
        np.testing.assert_array_equal(torch.cat([b["x"] for b in served]), rows.x[order, 1])
        np.testing.assert_array_equal(torch.cat([b["y"] for b in served]), rows.y[order])
        np.testing.assert_array_equal(torch.cat([b["token_id"] for b in served]), rows.token_id[order])
        orders.append(order)
    assert orders[0] != orders[1]


def test_without_a_seed_rows_come_in_the_order_of_the_run(rows: MadeRows, folder: Path) -> None:
    run = RemoteRun(RemoteFiles(folder.as_uri()))
    data = StreamedRows(run, "hidden_states", 0, chosen(rows, "validation"), batch_size=4, seed=None)
    assert places(rows, list(data)) == rows.rows_of("validation").tolist()


def test_a_server_that_drops_connections_serves_every_row(
    rows: MadeRows, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    server.drop_every = 2
    run = RemoteRun(RemoteFiles(server.url))
    batches = list(StreamedRows(run, "hidden_states", 5, chosen(rows), batch_size=8))
    order = places(rows, batches)
    assert sorted(order) == rows.rows_of("train").tolist()
    np.testing.assert_array_equal(torch.cat([b["x"] for b in batches]), rows.x[order, 2])
    assert server.n_dropped > 3


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to an S3 server, and breaks off every third answer in its middle."""

    def __init__(self, state: dict[str, Any], *arguments: Any) -> None:
        self.state = state
        super().__init__(*arguments)

    def do_GET(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        with urllib.request.urlopen(
            urllib.request.Request(self.state["upstream"] + self.path, headers=headers)
        ) as answer:
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.state["n"] += 1
        drops = self.state["n"] % 3 == 0
        self.wfile.write(data[: len(data) // 2] if drops else data)
        self.state["dropped"] += drops
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


def start_s3() -> tuple[subprocess.Popen[bytes], str]:
    """An S3 server in a process of its own: vLLM can't be loaded beside Flask's proxies."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    server.kill()
    raise TimeoutError("the S3 server did not start")


def test_an_object_store_that_drops_connections_serves_every_row(
    rows: MadeRows, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    s3, upstream = start_s3()
    state: dict[str, Any] = {"upstream": upstream, "n": 0, "dropped": 0}
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), partial(Proxy, state))
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        urllib.request.urlopen(urllib.request.Request(upstream + "/bucket", method="PUT")).close()
        options = {
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
            "client_options": {"allow_http": True},
            "virtual_hosted_style_request": False,
        }
        store = fsspec.filesystem("s3", endpoint=upstream, **options)
        for path in folder.rglob("*"):
            if path.is_file():
                store.pipe_file(f"bucket/run/{path.relative_to(folder).as_posix()}", path.read_bytes())

        address = f"http://127.0.0.1:{proxy.server_address[1]}"
        run = RemoteRun(RemoteFiles("s3://bucket/run", {"endpoint": address, **options}))
        batches = list(StreamedRows(run, "hidden_states", 5, chosen(rows), batch_size=8))
        order = places(rows, batches)
        assert sorted(order) == rows.rows_of("train").tolist()
        np.testing.assert_array_equal(torch.cat([b["x"] for b in batches]), rows.x[order, 2])
        assert state["dropped"] > 1
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        s3.terminate()
        s3.wait()


def test_a_server_that_answers_no_more_is_an_error_with_the_url(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    server.drop_every = 1
    with pytest.raises(RunError, match=r"http://127.*/manifest.json: can't be read, 6 tries, the last: "):
        RemoteRun(RemoteFiles(server.url))
    assert len(server.asked) == 6
    server.drop_every = 0
    with pytest.raises(BadShardError, match=r"nowhere/manifest.json: missing"):
        RemoteRun(RemoteFiles(server.url + "/nowhere"))


@pytest.mark.parametrize("kind", ["http", "pipe"])
def test_labels_are_read_without_the_rows_and_equal_those_of_a_mapped_run(
    rows: MadeRows, folder: Path, server: Served, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    run = RemoteRun(RemoteFiles(server.url if kind == "http" else f"pipe:cat {folder}/{{}}"))
    for name in ("prompt", "position", "token_id"):
        np.testing.assert_array_equal(getattr(run.index, name), getattr(rows, name))
    assert run.labels is not None
    np.testing.assert_array_equal(run.labels, rows.y)
    assert run.prompts(["id", "split"]).to_pydict() == open_run(folder).prompts(["id", "split"]).to_pydict()
    expected = open_run(folder).statistics("hidden_states", 5, "train")
    assert torch.equal(run.statistics("hidden_states", 5, "train").mean, expected.mean)


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_a_loader_takes_one_batch_of_each_process_in_turn(n_batches: list[int]) -> None:
    left = [[place] * n for place, n in enumerate(n_batches)]
    taken: list[int] = []
    while any(left):
        taken += [batches.pop() for batches in left if batches]
    assert process_of_each(n_batches) == taken


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_without_the_batches_that_are_done_is_the_rest_of_it(
    rows: MadeRows, folder: Path, num_workers: int
) -> None:
    run = RemoteRun(RemoteFiles(folder.as_uri()))
    data = StreamedRows(
        run, "hidden_states", 2, chosen(rows), batch_size=8, buffer_rows=9, num_workers=num_workers
    )
    loader = DataLoader(data, batch_size=None, num_workers=num_workers)
    data.begin_at(1)
    whole = [places(rows, [batch]) for batch in loader]
    for n_done in (0, 1, 5, len(whole)):
        data.begin_at(1, n_done)
        assert [places(rows, [batch]) for batch in loader] == whole[n_done:]


def test_a_command_that_prints_files_serves_every_row(rows: MadeRows, folder: Path) -> None:
    run = RemoteRun(RemoteFiles(f"pipe:cat {folder}/{{}}"))
    batches = list(StreamedRows(run, "hidden_states", 5, chosen(rows), batch_size=8))
    assert sorted(places(rows, batches)) == rows.rows_of("train").tolist()


def test_a_second_epoch_is_read_from_the_cache_which_keeps_to_its_size(
    rows: MadeRows, server: Served, tmp_path: Path
) -> None:
    server.drop_every = 0

    def epoch(max_bytes: int) -> int:
        cache = FileCache(tmp_path / str(max_bytes), max_bytes)
        run = RemoteRun(RemoteFiles(server.url, cache=cache))
        data = StreamedRows(run, "hidden_states", 0, chosen(rows), batch_size=8)
        len(data)
        before = len(server.asked)
        assert sorted(places(rows, list(data))) == rows.rows_of("train").tolist()
        held = sum(path.stat().st_size for path in cache.folder.iterdir())
        assert held <= max_bytes
        assert held > 0
        return len(server.asked) - before

    first, second = epoch(2**20), epoch(2**20)
    assert (first, second) == (5 + 0, 0)
    largest = max(os.path.getsize(p) for p in server.folder.glob("hidden_states/layer-000/*.tar"))  # noqa: PTH202
    assert epoch(2 * largest) > 0
    assert epoch(2 * largest) > 0


def test_an_altered_file_is_not_cached(tmp_path: Path, rows: MadeRows) -> None:
    forged = write_run(tmp_path / "forged", rows, n_shards=5)
    tar = forged / "hidden_states/layer-000/shard-000001.tar"
    data = bytearray(tar.read_bytes())
    data[700] ^= 1
    tar.write_bytes(data)
    files = RemoteFiles(forged.as_uri(), cache=FileCache(tmp_path / "cache", 2**20))
    with pytest.raises(BadShardError, match=r"shard-000001.tar: altered"):
        list(StreamedRows(RemoteRun(files), "hidden_states", 0, chosen(rows), batch_size=8))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=2, max_size=2), min_size=1, max_size=4), st.integers(1, 9)
)
def test_batches_are_equally_many_on_all_ranks_and_never_too_large(n_rows: Any, batch_size: int) -> None:
    try:
        batches = plan_batches(n_rows, batch_size)
    except SettingsError:
        fewest = [sum(-(-rows // batch_size) for rows in rank) for rank in n_rows]
        assume(False)
        assert any(sum(rank) < max(fewest) for rank in n_rows)
    assert len({sum(rank) for rank in batches}) == 1
    for rows, n in zip(n_rows, batches, strict=True):
        for one, count in zip(rows, n, strict=True):
            assert (count == 0) == (one == 0)
            assert count <= one <= count * batch_size


def test_a_rank_without_rows_and_a_wrong_number_of_workers_are_refused(rows: MadeRows, folder: Path) -> None:
    with pytest.raises(SettingsError, match="rank 1 has 0 rows for 3 batches: use fewer ranks"):
        plan_batches([[5], [0]], 2)
    data = StreamedRows(
        RemoteRun(RemoteFiles(folder.as_uri())), "hidden_states", 0, chosen(rows), num_workers=2
    )
    with pytest.raises(SettingsError, match="must have num_workers=2"):
        next(iter(data))
