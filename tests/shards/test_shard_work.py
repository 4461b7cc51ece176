"""A shard that is begun before all its rows are there ends as one that is not, or leaves nothing."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from easysteer_data.errors import ProofError, RunError
from easysteer_data.shards import RunWriter, StreamHeader, layout
from easysteer_data.shards.durable import DurableFile, partial_name
from easysteer_data.shards.index import layer_keys
from easysteer_data.shards.layer_tar import LayerTarWriter
from easysteer_data.shards.pack import packs_of
from easysteer_data.shards.side_by_side import SideBySide
from easysteer_data.types import CapturedPrompt, CapturedShard, Stream
from tests.shards.made import Made, files_of, make_run, write_run

IN_PLACE = {"hidden_states": StreamHeader((0, 3, 12), 2**14, "float32")}


@pytest.fixture(params=["brought together", "in place"])
def made(request: pytest.FixtureRequest) -> Made:
    """A run whose rows are too short to be written where they lie, and one whose rows are not."""
    made = make_run() if request.param == "brought together" else make_run(streams=IN_PLACE, pack_bytes=2**20)
    for shard in made.shards:
        writer = LayerTarWriter(Path(), made.header, shard, packs_of(shard, made.header), None)
        for key in layer_keys(made.header.layers):
            assert writer.has_bytes(key) == (request.param == "in place")
    return made


def to_come(shard: CapturedShard) -> CapturedShard:
    """The shard before it is captured: no row is there, and nothing was generated."""
    return replace(
        shard,
        prompts=tuple(CapturedPrompt(captured.prompt, captured.n_rows) for captured in shard.prompts),
        values={
            stream: {layer_id: torch.full_like(rows, torch.nan) for layer_id, rows in layers.items()}
            for stream, layers in shard.values.items()
        },
    )


def _zeros_like(shard: CapturedShard) -> dict[Stream, dict[int, torch.Tensor]]:
    return {
        stream: {layer_id: torch.zeros_like(rows) for layer_id, rows in layers.items()}
        for stream, layers in shard.values.items()
    }


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.is_file():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def test_layers_are_written_as_they_come_and_the_run_has_the_bytes_of_any_other(
    tmp_path: Path, made: Made
) -> None:
    write_run(tmp_path / "a", made)
    with RunWriter.open(tmp_path / "b", made.header) as writer:
        for shard in made.shards:
            coming = to_come(shard)
            work = writer.begin(coming)
            assert work is not None
            for stream, layer_id in layer_keys(made.header.layers)[:-1]:
                coming.values[stream][layer_id].copy_(shard.values[stream][layer_id])
                work.begin((stream, layer_id))
                wait_for(partial_name(tmp_path / "b" / layout.tar_name(stream, layer_id, shard.number)))
            assert shard.number not in writer.done
            assert not list((tmp_path / "b").rglob(f"shard-{shard.number:06d}.tar"))  # as yet unproven
            stream, layer_id = layer_keys(made.header.layers)[-1]
            coming.values[stream][layer_id].copy_(shard.values[stream][layer_id])
            writer.write(replace(shard, values=coming.values))
            assert work.has_ended
        writer.close()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.parametrize("other", ["memory", "labels", "meanwhile"])
def test_what_was_begun_of_other_rows_is_written_anew(tmp_path: Path, made: Made, other: str) -> None:
    write_run(tmp_path / "a", made)
    with RunWriter.open(tmp_path / "b", made.header) as writer:
        for shard in made.shards:
            coming = to_come(shard)
            if other == "meanwhile":
                coming = replace(coming, values=_zeros_like(shard))
            if other == "labels":
                index = replace(shard.index, token_id=shard.index.token_id + 1)
                coming = replace(coming, values=shard.values, index=index)
            work = writer.begin(coming, (lambda: False) if other == "meanwhile" else (lambda: True))
            assert work is not None
            for key in layer_keys(made.header.layers):
                work.begin(key)
            if other == "meanwhile":  # these rows came after others in the same memory
                first = layer_keys(made.header.layers)[0]
                wait_for(partial_name(tmp_path / "b" / layout.tar_name(*first, shard.number)))
                for stream, layers in shard.values.items():
                    for layer_id, rows in layers.items():
                        coming.values[stream][layer_id].copy_(rows)
                shard = replace(shard, values=coming.values)
            writer.write(shard)
        writer.close()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_row_that_can_not_be_stored_is_named_by_the_write(tmp_path: Path, made: Made) -> None:
    shard = to_come(made.shards[0])
    with RunWriter.open(tmp_path, made.header) as writer:
        work = writer.begin(shard)
        assert work is not None
        work.begin(layer_keys(made.header.layers)[0])
        with pytest.raises(ProofError, match="the row is not finite"):
            writer.write(shard)
        assert not writer.done
        writer.write(made.shards[0])
    assert not list(tmp_path.rglob("*.partial"))


def test_what_was_begun_and_never_written_leaves_no_file(tmp_path: Path, made: Made) -> None:
    with RunWriter.open(tmp_path, made.header):
        pass
    before = files_of(tmp_path)
    with RunWriter.open(tmp_path, made.header) as writer:
        work = writer.begin(made.shards[0])
        assert work is not None
        for key in layer_keys(made.header.layers):
            work.begin(key)
            wait_for(partial_name(tmp_path / layout.tar_name(*key, 0)))
    assert work.has_ended
    assert files_of(tmp_path) == before
    write_run(tmp_path, made)


def test_what_was_begun_is_removed_and_the_folder_let_go_also_if_that_is_interrupted(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = made.shards
    close, n_closed = SideBySide.close, 0

    def interrupted(beside: SideBySide) -> None:
        nonlocal n_closed
        close(beside)
        n_closed += 1
        if n_closed == 1:
            raise KeyboardInterrupt

    with RunWriter.open(tmp_path, made.header):
        pass
    before = files_of(tmp_path)
    monkeypatch.setattr(SideBySide, "close", interrupted)
    writer = RunWriter.open(tmp_path, made.header)
    writer.__enter__()
    for shard in (first, second):
        work = writer.begin(shard)
        assert work is not None
        for key in layer_keys(made.header.layers):
            work.begin(key)
            wait_for(partial_name(tmp_path / layout.tar_name(*key, shard.number)))
    with pytest.raises(KeyboardInterrupt):
        writer.__exit__(None, None, None)
    assert n_closed == 2
    assert files_of(tmp_path) == before
    assert writer.begin(third) is None
    write_run(tmp_path, made)


@pytest.mark.parametrize("begun", [True, False])
def test_errors_of_a_layer_that_can_not_be_removed_either_are_all_told_and_nothing_waits(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    discard = DurableFile.discard

    def read_only(file: DurableFile) -> None:
        discard(file)
        raise OSError(errno.EROFS, "Read-only file system")

    def broken(_file: DurableFile, _data: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    shard = made.shards[0]
    with RunWriter.open(tmp_path, made.header) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(DurableFile, "write", broken)
            patched.setattr(DurableFile, "discard", read_only)
            if begun:
                work = writer.begin(shard)
                assert work is not None
                for key in layer_keys(made.header.layers):
                    work.begin(key)
            with pytest.raises(RunError) as told:
                writer.write(shard)
        assert "Input/output error" in str(told.value)
        assert not list(tmp_path.rglob("*.partial"))
        writer.write(shard)


def test_a_shard_that_can_not_be_committed_leaves_no_file(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter.open(tmp_path, made.header) as writer:
        before = files_of(tmp_path)
        with monkeypatch.context() as patched:

            def full(_path: Path, _data: bytes) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patched.setattr("easysteer_data.shards.writer.append_durably", full)
            with pytest.raises(RunError, match="disk"):
                writer.write(made.shards[0])
        assert files_of(tmp_path) == before
        writer.write(made.shards[0])


def test_a_shard_that_is_being_written_is_not_taken_over(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path / "a", made)
    with RunWriter.open(tmp_path / "b", made.header) as writer:
        assert writer.begin(made.shards[0]) is not None
        with RunWriter.open(tmp_path / "c", made.header) as other:
            entry = other.write(made.shards[0])
        with pytest.raises(RunError, match="shard 0 is being written already"):
            writer.adopt(entry, tmp_path / "c", keep=True)


def test_a_shard_is_not_begun_twice_nor_once_it_is_written_nor_if_it_is_not_as_planned(
    tmp_path: Path, made: Made
) -> None:
    first, second, _ = made.shards
    with RunWriter.open(tmp_path, made.header) as writer:
        assert writer.begin(first) is not None
        assert writer.begin(first) is None
        writer.write(first)
        assert writer.begin(first) is None
        assert writer.begin(replace(second, prompts=second.prompts[1:])) is None
        writer.write(second)


def test_a_shard_for_which_there_is_no_room_is_not_begun_and_its_write_says_why(
    tmp_path: Path, made: Made
) -> None:
    with RunWriter.open(tmp_path, made.header, min_free_bytes=2**62) as writer:
        assert writer.begin(made.shards[0]) is None
        with pytest.raises(RunError, match="stopped before the disk is full"):
            writer.write(made.shards[0])
