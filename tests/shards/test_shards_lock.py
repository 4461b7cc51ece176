from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from easysteer_data.errors import RunError
from easysteer_data.shards import RunWriter, open_run
from easysteer_data.shards.lock import FolderLock
from tests.shards.made import Made, files_of, make_run, write_run

ROOT = Path(__file__).parents[2]
# A process that opens a run for writing, says so, and then only ends when it is told or killed.
OWNER = """
import sys
from pathlib import Path
from easysteer_data.shards import RunWriter
from tests.shards.made import make_run
made = make_run()
with RunWriter.open(Path(sys.argv[1]), made.header) as writer:
    if not writer.done:
        writer.write(made.shards[0])
    print("writing", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def made() -> Made:
    return make_run()


@contextmanager
def owner_of(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is writing a run in a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_a_second_process_is_refused_with_the_owner_and_its_age_and_readers_are_not(
    tmp_path: Path, made: Made
) -> None:
    finished, out = tmp_path / "finished", tmp_path / "out"
    write_run(finished, made)
    with owner_of(out) as owner, owner_of(finished):
        before = files_of(out)
        with pytest.raises(RunError) as caught:
            RunWriter.open(out, made.header)
        host = os.uname().nodename
        assert f"{out} is being written by process {owner.pid} on {host} since 20" in str(caught.value)
        assert " UTC (" in str(caught.value)
        assert "s ago); wait for it, stop it, or choose another output folder" in str(caught.value)
        assert files_of(out) == before
        assert open_run(finished).n_rows == 17


def test_a_killed_owner_leaves_the_folder_to_the_next_one(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path / "whole", made)
    out = tmp_path / "out"
    with owner_of(out) as owner:
        owner.send_signal(signal.SIGKILL)
    assert (out / ".lock").is_file()
    with RunWriter.open(out, made.header) as writer:
        assert writer.done == {0}
    write_run(out, made)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_the_age_is_told_in_the_largest_units(tmp_path: Path) -> None:
    for age_s, words in (
        (42, "4\\d s"),
        (7 * 60 + 5, "7 min 5 s"),
        (2 * 3600 + 180, "2 h 3 min"),
        (90_000, "1 d 1 h"),
    ):
        with FolderLock.acquire(tmp_path):
            record = {"pid": 7, "host": "node-3", "since_s": int(time.time()) - age_s}
            (tmp_path / ".lock").write_text(json.dumps(record))
            with pytest.raises(RunError, match=rf"process 7 on node-3 since .* UTC \({words} ago\)"):
                FolderLock.acquire(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}', '{"pid": 1, "host": "h", "since_s": 1e300}'])
def test_a_lock_without_an_owner_in_it_still_holds(tmp_path: Path, text: str) -> None:
    with FolderLock.acquire(tmp_path):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(RunError, match="is being written by another process"):
            FolderLock.acquire(tmp_path)


def test_a_lock_is_let_go_on_every_way_out(tmp_path: Path, made: Made) -> None:
    with pytest.raises(ZeroDivisionError), RunWriter.open(tmp_path, made.header):
        raise ZeroDivisionError
    with RunWriter.open(tmp_path, made.header) as writer:
        for shard in made.shards:
            writer.write(shard)
        writer.close()
        with RunWriter.open(tmp_path, made.header) as other:  # a finished run is nobody's any more
            assert other.done == {0, 1, 2}
    with pytest.raises(RunError, match="holds a run already"):
        RunWriter.open(tmp_path, made.header, on_existing="fail")
    assert not (tmp_path / ".lock").exists()
    FolderLock.acquire(tmp_path).release()


def test_a_forked_process_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = FolderLock.acquire(tmp_path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(read, 1)  # outlives the parent's lock
        os._exit(0)
    try:
        lock.release()
        FolderLock.acquire(tmp_path).release()
    finally:
        os.write(write, b"x")
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_a_lock_file_that_its_owner_removed_meanwhile_is_not_taken_for_the_folders(tmp_path: Path) -> None:
    first = FolderLock.acquire(tmp_path)
    stale = os.open(tmp_path / ".lock", os.O_RDWR)  # opened before, locked after the owner let go
    first.release()
    with FolderLock.acquire(tmp_path):
        assert not os.path.samestat(os.fstat(stale), (tmp_path / ".lock").stat())
        with pytest.raises(RunError, match=f"process {os.getpid()} on"):
            FolderLock.acquire(tmp_path)
    os.close(stale)


def test_a_folder_that_is_not_there_can_not_be_locked(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"gone: can't be locked for writing \(No such file or directory\)"):
        FolderLock.acquire(tmp_path / "gone")
