"""Slices of a run, captured apart and merged, are the run; what is missing of them is named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.capture_run import ShardSlice, merge_slices
from easysteer_data.capture_run.measurements import ShardMeasurements
from easysteer_data.errors import BadShardError, RunError, SettingsError, SettingsMismatchError
from easysteer_data.shards import RunWriter, inspect_run
from tests.capture_run.killing import n_committed, start, wait_until
from tests.shards.made import Made, files_of, make_run, write_run


@pytest.fixture
def made() -> Made:
    return make_run(tuple(range(1, 12)), n_shards=7)


def write_slice(run: Path, made: Made, text: str, n_most: int = 99) -> Path:
    part = ShardSlice.parse(text)
    folder = part.folder(run)
    with RunWriter.open(folder, made.header) as writer:
        for number in part.shards(len(made.shards))[:n_most]:
            if number not in writer.done:
                writer.write(made.shards[number])
                ShardMeasurements(folder).add(number, n_tokens=10, wall_s=1.5, gates={"zero": 1})
    return folder


def rows_of(run: Path) -> dict[str, bytes]:
    """Every file but those that tell how long the run took."""
    return {
        name: data for name, data in files_of(run).items() if name not in ("manifest.json", "measured.jsonl")
    }


@given(n_shards=st.integers(0, 60), n_slices=st.integers(1, 20))
def test_slices_share_the_shards_evenly_each_once(n_shards: int, n_slices: int) -> None:
    shares = [ShardSlice(n_slices, number).shards(n_shards) for number in range(1, n_slices + 1)]
    assert [shard for share in shares for shard in share] == list(range(n_shards))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["3", "3/", "/3", "0/4", "5/4", "a/b", "1/2/3", "-1/4", "1/0", "¹/2"])
def test_a_slice_that_is_none_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(SettingsError, match=r"shard_slice="):
        ShardSlice.parse(text)


def test_merged_slices_are_the_run_that_was_written_at_once(made: Made, tmp_path: Path) -> None:
    write_run(tmp_path / "whole", made)
    run = tmp_path / "run"
    for number in (3, 1, 2):
        write_slice(run, made, f"{number}/3")
    manifest = merge_slices(run)
    assert rows_of(run) == rows_of(tmp_path / "whole")
    assert manifest.measured == {"n_tokens": 70, "wall_s": 10.5, "gates": {"zero": 7}}
    assert inspect_run(run).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "whole"]
    assert merge_slices(run) == manifest  # nothing is left to do


def test_missing_shards_are_named_by_slice_and_nothing_is_touched(made: Made, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_slice(run, made, "1/3")
    write_slice(run, made, "3/3", n_most=1)
    before = files_of(tmp_path)
    with pytest.raises(RunError) as caught:
        merge_slices(run)
    assert str(caught.value) == (
        f"{run}: 4 of 7 shards are missing; capture these slices, then merge again\n"
        "  shard_slice=2/3 (not there): shards 2-3\n"
        "  shard_slice=3/3 (unfinished): shards 5-6"
    )
    assert files_of(tmp_path) == before
    assert not run.exists()


def test_slices_of_another_run_are_refused_with_the_difference(made: Made, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_slice(run, made, "1/2")
    other = make_run(tuple(range(1, 12)), n_shards=7, fingerprint="b2", settings={"select": "last"})
    write_slice(run, other, "2/2")
    with pytest.raises(SettingsMismatchError, match=r"002-of-002: is a part of another run[^!]*\n.*select"):
        merge_slices(run)
    assert not run.exists()


def test_a_folder_without_slices_is_told_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.parts: holds no part of a run; capture some with shard_slice="):
        merge_slices(tmp_path / "run")


def test_a_merge_stopped_at_any_file_is_continued_to_the_same_run(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "whole", made)
    run, n_stops, unlink, link = tmp_path / "run", 0, os.unlink, os.link
    for number in (1, 2, 3):
        write_slice(run, made, f"{number}/3")
    allowed = 0

    def stop_after_some(*names: str, **options: object) -> None:
        nonlocal allowed
        if not str(names[0]).endswith(".lock"):  # which a killed process lets go of
            allowed -= 1
            if allowed < 0:
                raise KeyboardInterrupt
        (link if len(names) == 2 else unlink)(*names, **options)  # type: ignore[operator]

    monkeypatch.setattr(os, "link", stop_after_some)
    monkeypatch.setattr(os, "unlink", stop_after_some)
    while True:
        allowed = n_stops  # one more step than the time before
        try:
            merge_slices(run)
        except KeyboardInterrupt:
            n_stops += 1
        else:
            break
    assert n_stops > 10
    assert rows_of(run) == rows_of(tmp_path / "whole")


def test_slices_on_a_file_system_without_links_are_copied_and_checked(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    write_run(tmp_path / "whole", made)
    run = tmp_path / "run"
    first, _ = write_slice(run, made, "1/2"), write_slice(run, made, "2/2")
    shutil.copytree(tmp_path / "run.parts", tmp_path / "again.parts")
    bad = first / "hidden_states/layer-003/shard-000001.tar"
    data = bytearray(bad.read_bytes())
    data[700] ^= 1
    bad.write_bytes(data)
    with pytest.raises(BadShardError, match=r"layer-003/shard-000001\.tar: altered"):
        merge_slices(run)
    merge_slices(tmp_path / "again")
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "whole")


@pytest.fixture
def arguments(tmp_path: Path, tiny_model: Path) -> list[str]:
    corpus = tmp_path / "prompts.jsonl"
    rows = [{"text": f"The city of {'x ' * (i % 9)} is {i}.", "label": i % 2} for i in range(60)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "model=folder",
        f"model.path={tiny_model}",
        "model.dtype=float32",
        "corpus=jsonl",
        f"corpus.path={corpus}",
        "corpus.label_column=label",
        "select=prompt",
        "engine.max_num_seqs=4",
        "engine.options.kv_cache_memory_bytes=67108864",
        "shards.min_shards=9",
        "shards.min_free_gb=0.01",
        "progress=false",
    ]


def test_slices_captured_at_once_and_one_of_them_killed_make_the_same_bytes(
    arguments: list[str], tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "sliced"
    parts = out / "capture.parts"
    out.mkdir()
    whole.mkdir()
    first = start([*arguments, f"out={out}", "shard_slice=1/2"], tmp_path / "1.txt")
    second = start([*arguments, f"out={out}", "shard_slice=2/2"], tmp_path / "2.txt")
    wait_until(lambda: n_committed(parts / "002-of-002") >= 1, second)
    second.kill()
    for process in (first, second):
        process.join()
    assert first.exitcode == 0, (tmp_path / "1.txt").read_text()
    assert "slice 1/2, which the stage merge joins with the others" in (tmp_path / "1.txt").read_text()
    if n_committed(parts / "002-of-002") < 5:
        with pytest.raises(RunError, match=r"shard_slice=2/2 \(unfinished\): shards"):
            merge_slices(out / "capture")
    for process in (
        start([*arguments, f"out={out}", "shard_slice=2/2"], tmp_path / "3.txt"),
        start([*arguments, f"out={whole}"], tmp_path / "4.txt"),
    ):
        process.join()
        assert process.exitcode == 0, (tmp_path / "3.txt").read_text() + (tmp_path / "4.txt").read_text()
    merge_slices(out / "capture")
    timed = {"run.json", "manifest.json", "measured.jsonl"}
    merged, at_once = (
        {name: data for name, data in files_of(folder / "capture").items() if name not in timed}
        for folder in (out, whole)
    )
    for files in (merged, at_once):  # shards are committed as they are done
        files["journal.jsonl"] = b"".join(sorted(files["journal.jsonl"].splitlines(keepends=True)))
    assert merged == at_once
    manifests = [json.loads((folder / "capture/manifest.json").read_text()) for folder in (out, whole)]
    for manifest in manifests:
        del manifest["provenance"], manifest["measured"]["wall_s"]
    assert manifests[0] == manifests[1]
