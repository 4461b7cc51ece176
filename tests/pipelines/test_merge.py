"""The stage `merge` as a user runs it, on slices of made-up rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from easysteer_data.capture_run import ShardSlice
from easysteer_data.shards import RunWriter, open_run
from pipelines.merge import main
from tests.shards.made import Made, make_run


def write_slice(run: Path, made: Made, part: ShardSlice) -> None:
    with RunWriter.open(part.folder(run), made.header) as writer:
        for number in part.shards(len(made.shards)):
            writer.write(made.shards[number])


def test_missing_slices_are_an_error_in_words_and_all_of_them_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = make_run(), tmp_path / "capture"
    write_slice(run, made, ShardSlice(2, 1))
    monkeypatch.setattr(sys, "argv", ["merge", f"out={tmp_path}"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert f"RunError: {run}: 2 of 3 shards are missing" in said
    assert said.splitlines()[-1] == "  shard_slice=2/2 (not there): shards 1-2"
    write_slice(run, made, ShardSlice(2, 2))
    monkeypatch.setattr(sys, "argv", ["merge", f"run={run}", f"out={tmp_path / 'elsewhere'}"])
    main()
    assert capsys.readouterr().out == f"{run}: 3 shards, 17 rows a layer\n"
    assert open_run(run).n_rows == 17
