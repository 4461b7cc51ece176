"""The stores that a run's URL may be of, each read by its own client, from a server in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from easysteer_data import StreamingDataModule
from easysteer_data.errors import RunError
from easysteer_data.shards.remote_files import RemoteFiles
from easysteer_data.shards.remote_run import RemoteRun
from tests.runs import MadeRows, random_rows, write_run
from tests.shards.http_files import Served, served_folder

HUB_PREFIX = "datasets/me/data/resolve/main/run"


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows()


@pytest.fixture(scope="module")
def folder(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


@contextmanager
def root_at(scheme: str, folder: Path) -> Iterator[tuple[RemoteFiles, Served]]:
    """The run behind a URL of a scheme."""
    prefix = {"http": "", "gs": "bucket/run", "hf": HUB_PREFIX}[scheme]
    with served_folder(folder, prefix) as server:
        key = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        files = {
            "http": RemoteFiles(server.url),
            "gs": RemoteFiles(
                "gs://bucket/run",
                {
                    "service_account_key": json.dumps({**key, "private_key_id": ""}),
                    "client_options": {"allow_http": True},
                },
            ),
            "hf": RemoteFiles("hf://datasets/me/data/run", {"endpoint": server.url, "token": False}),
        }
        yield files[scheme], server


@pytest.mark.parametrize("scheme", ["http", "gs", "hf"])
def test_every_row_of_a_layer_is_read_and_no_other_layers_rows(
    rows: MadeRows, folder: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    with root_at(scheme, folder) as (files, server):
        server.drop_every = 2
        data = StreamingDataModule(files.root, 5, batch_size=8, options=files.options)
        data.setup()
        batches = list(data.predict_dataloader())
        np.testing.assert_array_equal(torch.cat([batch["x"] for batch in batches]), rows.x[:, 2])
        np.testing.assert_array_equal(torch.cat([batch["y"] for batch in batches]), rows.y)
    assert server.n_dropped > 0
    layers = {name.split("/")[1] for name, _ in server.asked if name.startswith("hidden_states/")}
    assert layers == {"layer-005"}
    assert all(part is not None for name, part in server.asked if name.endswith(".tar"))


def test_a_server_without_ranges_gives_each_file_once(rows: MadeRows, folder: Path) -> None:
    with served_folder(folder) as server:
        server.ranges = False
        run = RemoteRun(RemoteFiles(server.url))
        np.testing.assert_array_equal(run.index.token_id, rows.token_id)
        data = StreamingDataModule(server.url, 5, batch_size=8)
        x = torch.cat([batch["x"] for batch in data.predict_dataloader()])
    np.testing.assert_array_equal(x, rows.x[:, 2])
    tars = [name for name, _ in server.asked if name.endswith(".tar")]
    assert len(tars) == len(set(tars)) == 6  # a layer's three shards for the rows, another's for the labels


def test_the_hub_offline_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easysteer_data.shards.remote_files._FIRST_WAIT_S", 0.001)
    with pytest.raises(
        RunError, match=r"^hf://datasets/me/data/run/manifest.json: .*offline mode is enabled"
    ):
        StreamingDataModule("hf://datasets/me/data/run", 0).setup()


def test_a_missing_client_and_an_unknown_scheme_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "hf", raising=False)
    with pytest.raises(RunError, match=r"^hf://.*huggingface_hub.*pip install 'easysteer-data\[hf\]'$"):
        RemoteFiles("hf://datasets/me/data/run").read("manifest.json")
    with pytest.raises(RunError, match=r"^nosuch://a/run: Protocol not known: nosuch"):
        RemoteFiles("nosuch://a/run").read("manifest.json")
