from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from easysteer_data.shards.durable import DurableFile, append_durably, make_folder, write_durably
from tests.shards.made import disk_with_room_for


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    with DurableFile(path) as file:
        file.write(b"one")
        assert not path.exists()
        assert list(tmp_path.glob("*.tar")) == []
        file.write(memoryview(b"two"))
    assert path.read_bytes() == b"onetwo"
    assert (file.n_bytes, file.sha256) == (6, hashlib.sha256(b"onetwo").hexdigest())
    assert [*tmp_path.iterdir()] == [path]


def fail_while_writing(path: Path) -> None:
    with DurableFile(path) as file:
        file.write(b"new")
        raise ZeroDivisionError


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_durably(path, b"old")
    with pytest.raises(ZeroDivisionError):
        fail_while_writing(path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.json": b"old"}


def lose_the_disk_while_writing(path: Path) -> None:
    with DurableFile(path) as file:
        file.write(b"new")
        os.close(file._file.fileno())  # so that the fsync at the end fails, as a network disk's may


def test_a_disk_that_fails_only_when_the_file_is_put_on_it_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_durably(path, b"old")
    with pytest.raises(OSError, match="Bad file descriptor"):
        lose_the_disk_while_writing(path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.json": b"old"}


def test_a_full_disk_leaves_a_journal_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append_durably(path, b"x" * 1000 + b"\n")
    with disk_with_room_for(1025), pytest.raises(OSError, match="File too large"):
        append_durably(path, b"y" * 500 + b"\n")
    assert path.read_bytes() == b"x" * 1000 + b"\n"


def test_folders_are_made_with_their_parents_and_found_again(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b" / "c")
    assert os.listdir(tmp_path / "a" / "b") == ["c"]  # noqa: PTH208
