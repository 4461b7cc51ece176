"""A run written to an S3 server that has mishaps is the run of a folder; a killed writer is continued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from easysteer_data.errors import RunError, SettingsMismatchError
from easysteer_data.shards import mirror_run, object_store, open_run, remote_lock
from easysteer_data.shards.object_store import ObjectStore
from easysteer_data.shards.remote_files import RemoteFiles
from easysteer_data.shards.remote_writer import RemoteRunWriter, Spool, finished_remote_run
from tests.shards.made import Made, files_of, make_run, write_run
from tests.shards.remote_crash import MADE
from tests.shards.s3 import OPTIONS, Mishaps, proxy_to, s3_server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(scope="module")
def proxy(port: int) -> Iterator[tuple[str, Mishaps]]:
    with proxy_to(port) as proxy:
        yield proxy


@pytest.fixture
def mishaps(proxy: tuple[str, Mishaps], monkeypatch: pytest.MonkeyPatch) -> Iterator[Mishaps]:
    monkeypatch.setattr(object_store, "_FIRST_WAIT_S", 0.05)
    yield proxy[1]
    proxy[1].__init__()  # type: ignore[misc]  # without mishaps again


def store_at(proxy: tuple[str, Mishaps], name: str) -> ObjectStore:
    return ObjectStore(f"s3://bucket/{name}", {"endpoint": proxy[0], **OPTIONS})


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {name: store.read(name) or b"" for name in store.sizes("")}


def write_remotely(store: ObjectStore, made: Made, spool: Path, max_bytes: int = 2**20) -> None:
    with RemoteRunWriter.open(store, made.header, Spool(spool, max_bytes)) as writer:
        for shard in made.shards:
            if shard.number not in writer.done:
                writer.write(shard)
        writer.close()


def same_as_folder(found: dict[str, bytes], folder: Path) -> None:
    """The objects of a run are the files of a folder, but for the journal, of which each line is one."""
    expected = files_of(folder)
    lines = expected.pop("journal.jsonl").splitlines()
    journal = {name: found.pop(name) for name in sorted(found) if name.startswith("journal/")}
    assert list(journal.values()) == lines
    assert found == expected


def test_a_run_written_through_failures_drops_and_flipped_bits_is_the_run(
    proxy: tuple[str, Mishaps], mishaps: Mishaps, tmp_path: Path
) -> None:
    made = make_run()
    write_run(tmp_path / "whole", made)
    mishaps.fail_every, mishaps.drop_every, mishaps.flip_every = 5, 7, 11
    store, biggest = store_at(proxy, "faulty"), 0

    def look() -> None:
        nonlocal biggest
        files = [path.stat().st_size for path in tmp_path.glob("spool/**/*.tar") if path.exists()]
        biggest = max(biggest, sum(files))

    mishaps.before = look
    write_remotely(store, made, tmp_path / "spool", max_bytes=1)
    assert min(mishaps.seen[kind] for kind in ("failed", "dropped", "flipped", "refused")) >= 1
    # The spool held one shard on its way and one being written at most.
    sizes = sorted(
        sum(f.n_bytes for f in shard.files if f.name.endswith(".tar")) for shard in found_shards(store)
    )
    assert 0 < biggest <= sizes[-1] + sizes[-2]
    mishaps.__init__()  # type: ignore[misc]
    same_as_folder(contents(store), tmp_path / "whole")
    assert not (tmp_path / "spool").exists()
    copy = mirror_run(
        RemoteFiles("s3://bucket/faulty", {"endpoint": proxy[0], **OPTIONS}), tmp_path / "copies"
    )
    assert open_run(copy).n_rows == 17


def found_shards(store: ObjectStore) -> list[object]:
    manifest = finished_remote_run(store, "a1")
    assert manifest is not None
    return list(manifest.shards)


def test_a_large_file_goes_up_in_parts_each_checked(
    proxy: tuple[str, Mishaps], mishaps: Mishaps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_PART_BYTES", 5 * 2**20)
    data = os.urandom(11 * 2**20 + 3)
    (tmp_path / "file").write_bytes(data)
    mishaps.flip_every = 4
    store = store_at(proxy, "parts")
    store.put_file("file", tmp_path / "file", len(data))
    assert mishaps.seen["POST?"] >= 1
    assert mishaps.seen["refused"] >= 1
    mishaps.flip_every = 0
    assert store.read("file") == data


def test_a_writer_killed_at_random_moments_is_continued_to_the_same_objects(
    proxy: tuple[str, Mishaps], port: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.shards.remote_crash", "s3://bucket/killed", f"http://127.0.0.1:{port}",
         str(tmp_path), "8"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_hit"] >= 2
    write_run(tmp_path / "whole", MADE)
    same_as_folder(contents(store_at(proxy, "killed")), tmp_path / "whole")


def test_a_committed_shard_is_not_uploaded_again_and_a_lost_object_is(
    proxy: tuple[str, Mishaps], mishaps: Mishaps, tmp_path: Path
) -> None:
    made, store = make_run(), store_at(proxy, "resumed")
    with RemoteRunWriter.open(store, made.header, Spool(tmp_path / "spool", 2**20)) as writer:
        writer.write(made.shards[1])
        writer.write(made.shards[0])
    with pytest.raises(RunError, match=r"1 of 3 shards are not written: 2"):
        with RemoteRunWriter.open(store, made.header, Spool(tmp_path / "spool", 2**20)) as writer:
            writer.close()
    assert finished_remote_run(store, "a1") is None
    store.remove("prompts/shard-000001.parquet")
    with RemoteRunWriter.open(store, made.header, Spool(tmp_path / "spool", 2**20)) as writer:
        assert writer.done == {0}
    write_remotely(store, made, tmp_path / "spool")
    manifest = finished_remote_run(store, "a1")
    assert manifest is not None
    before = mishaps.seen["PUT"]
    write_remotely(store, made, tmp_path / "spool")
    assert mishaps.seen["PUT"] - before <= 3  # the lock, the statistics, the manifest


def test_a_second_writer_is_refused_and_one_taken_for_dead_learns_it(
    proxy: tuple[str, Mishaps], mishaps: Mishaps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lock, "RENEW_S", 1.0)
    made, store = make_run(), store_at(proxy, "owned")
    first = RemoteRunWriter.open(store, made.header, Spool(tmp_path / "a", 2**20))
    with pytest.raises(RunError, match=rf"/owned is being written by process {os.getpid()} on"):
        RemoteRunWriter.open(store, made.header, Spool(tmp_path / "b", 2**20))
    monkeypatch.setattr(remote_lock, "STALE_S", -1.0)
    with RemoteRunWriter.open(store, made.header, Spool(tmp_path / "b", 2**20)):
        time.sleep(3.0)
        with first, pytest.raises(RunError, match="took this process for dead"):
            first.close()
    assert store.read(".lock") is None
    assert mishaps.seen["refused"] == 0


def test_what_is_no_run_or_another_is_left_alone(proxy: tuple[str, Mishaps], tmp_path: Path) -> None:
    made, store = make_run(), store_at(proxy, "strange")
    store.put("something.txt", b"mine")
    with pytest.raises(RunError, match=r"is not empty \(it holds something.txt\)"):
        write_remotely(store, made, tmp_path / "spool")
    assert contents(store) == {"something.txt": b"mine"}
    store = store_at(proxy, "other")
    write_remotely(store, made, tmp_path / "spool")
    before = contents(store)
    with pytest.raises(SettingsMismatchError, match=r"settings\.select"):
        write_remotely(store, make_run(fingerprint="b2", settings={"select": None}), tmp_path / "spool")
    with pytest.raises(RunError, match="holds a run already; on_existing=resume continues it"):
        RemoteRunWriter.open(store, made.header, Spool(tmp_path / "spool", 1), on_existing="overwrite")
    assert contents(store) == before


def test_a_store_that_is_away_for_a_while_is_waited_for(
    proxy: tuple[str, Mishaps], mishaps: Mishaps, tmp_path: Path
) -> None:
    made = make_run()
    store = store_at(proxy, "away")
    with RemoteRunWriter.open(store, made.header, Spool(tmp_path / "spool", 2**20)) as writer:
        writer.write(made.shards[0])
        mishaps.away = True
        threading.Timer(3.0, lambda: setattr(mishaps, "away", False)).start()
        for shard in made.shards[1:]:
            writer.write(shard)
        writer.close()
    assert mishaps.seen["away"] > 1
    write_run(tmp_path / "whole", made)
    same_as_folder(contents(store), tmp_path / "whole")
