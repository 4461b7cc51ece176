"""A folder with a run in it: continued, refused or overwritten, as asked; never a stranger's file removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.errors import RunError, SettingsMismatchError
from easysteer_data.shards import RunWriter, StreamHeader, open_run
from tests.shards.made import files_of, make_run, memory_folder, write_run

OLD = make_run()
# Other streams, layers, plan and fingerprint: nothing of the old run fits it.
NEW = make_run(
    [2, 1, 0, 3, 2], {"attention_heads": StreamHeader((1, 2), 4, "float16")}, n_shards=2, fingerprint="b2"
)


@pytest.mark.parametrize("n_written", [0, 1, 3])
def test_fail_refuses_a_run_finished_or_not_and_says_what_else_there_is(
    tmp_path: Path, n_written: int
) -> None:
    with RunWriter.open(tmp_path, OLD.header, on_existing="fail") as writer:
        for shard in OLD.shards[:n_written]:
            writer.write(shard)
        if n_written == 3:
            writer.close()
    before = files_of(tmp_path)
    with pytest.raises(RunError, match=r"on_existing=resume .*on_existing=overwrite .*another output folder"):
        RunWriter.open(tmp_path, OLD.header, on_existing="fail")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("finished", [True, False])
def test_overwrite_leaves_the_new_run_and_nothing_of_the_old(tmp_path: Path, finished: bool) -> None:
    write_run(tmp_path / "alone", NEW)
    out = tmp_path / "out"
    write_run(out, OLD)
    (out / "measured.jsonl").write_text("{}\n")
    (out / "index" / ".shard-000000.json.partial").write_bytes(b"half")
    if not finished:
        (out / "manifest.json").unlink()
        (out / "hidden_states/layer-003/shard-000002.tar").unlink()
    with RunWriter.open(out, NEW.header, on_existing="overwrite") as writer:
        assert writer.done == frozenset()
        for shard in NEW.shards:
            writer.write(shard)
        writer.close()
    assert files_of(out) == files_of(tmp_path / "alone")
    assert not (out / "hidden_states").exists()


def test_overwrite_of_the_same_settings_begins_anew(tmp_path: Path) -> None:
    write_run(tmp_path, OLD)
    with RunWriter.open(tmp_path, OLD.header, on_existing="overwrite") as writer:
        assert writer.done == frozenset()
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "hidden_states/layer-003/shard-000099.tar", "hidden_states/layer-004/x", "prompts/a/b"],
)
def test_overwrite_touches_nothing_where_a_strangers_file_is(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, OLD)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    before = files_of(tmp_path)
    with pytest.raises(RunError, match=rf"so it is not overwritten: .*{name}; move them away"):
        RunWriter.open(tmp_path, NEW.header, on_existing="overwrite")
    assert files_of(tmp_path) == before


def test_overwrite_does_not_follow_a_link_out_of_the_folder(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write_run(out, OLD)
    shutil.move(out / "prompts", elsewhere)
    (out / "prompts").symlink_to(elsewhere)
    before = files_of(elsewhere)
    with pytest.raises(RunError, match="not overwritten: prompts;"):
        RunWriter.open(out, NEW.header, on_existing="overwrite")
    assert files_of(elsewhere) == before


def test_a_run_that_can_not_be_read_is_not_overwritten(tmp_path: Path) -> None:
    write_run(tmp_path, OLD)
    (tmp_path / "run.json").write_text("{}")
    before = files_of(tmp_path)
    with pytest.raises(RunError, match=r"can't be overwritten: run\.json: schema version None"):
        RunWriter.open(tmp_path, NEW.header, on_existing="overwrite")
    assert files_of(tmp_path) == before


def test_a_folder_of_something_else_is_refused_whatever_is_asked(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for choice in ("resume", "fail", "overwrite"):
        with pytest.raises(RunError, match="is no run folder"):
            RunWriter.open(tmp_path, OLD.header, on_existing=choice)  # type: ignore[arg-type]
    assert files_of(tmp_path) == {"thesis.tex": b"precious"}
    with pytest.raises(RunError, match="on_existing must be one of resume, fail, overwrite, found 'append'"):
        RunWriter.open(tmp_path / "new", OLD.header, on_existing="append")  # type: ignore[arg-type]


def test_an_overwrite_killed_at_any_step_can_be_overwritten_again() -> None:
    with memory_folder() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.shards.overwrite_crash", folder],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    crashes: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(crashes) > 30
    assert {crash["step"]: crash["differing"] for crash in crashes if crash["differing"]} == {}
    # Whatever passed for finished after a kill was whole: the old run, or the new one.
    assert [crash["finished"] for crash in crashes] == sorted(
        (crash["finished"] for crash in crashes), key=["a1", None, "b2"].index
    )


def test_a_run_half_overwritten_is_still_refused_to_other_settings(tmp_path: Path) -> None:
    write_run(tmp_path, OLD)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(SettingsMismatchError):
        RunWriter.open(tmp_path, NEW.header)
    write_run(tmp_path, OLD)
    assert open_run(tmp_path).n_rows == 17
