from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event, Semaphore

import pyarrow.parquet as pq
import pytest
import torch

from easysteer_data.errors import ProofError, RunError, SettingsMismatchError
from easysteer_data.shards import (
    LabelHeader,
    RunHeader,
    RunWriter,
    StreamHeader,
    fingerprint_of,
    finished_run,
    measure,
    side_by_side,
)
from easysteer_data.shards.durable import DurableFile
from easysteer_data.types import CapturedShard, RowIndex
from tests.runs import random_rows
from tests.runs import write_run as write_random_run
from tests.shards.made import HIDDEN, Made, disk_with_room_for, files_of, make_run, write_run


@pytest.fixture
def made() -> Made:
    return make_run()


def write_shard(out: Path, made: Made, number: int) -> None:
    with RunWriter.open(out, made.header) as writer:
        writer.write(made.shards[number])


def done_in(out: Path, made: Made) -> frozenset[int]:
    with RunWriter.open(out, made.header) as writer:
        return writer.done


def test_the_same_rows_give_the_same_bytes_in_every_file(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path / "a", made)
    write_run(tmp_path / "b", make_run())
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_layers_written_side_by_side_have_the_bytes_of_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    rows = random_rows(200, tuple(range(9)), 64)
    monkeypatch.setattr(measure, "_PART_VALUES", 50 * 64)  # several parts a layer
    monkeypatch.setattr(side_by_side, "N_THREADS", 1)
    write_random_run(tmp_path / "a", rows, dtype)
    monkeypatch.setattr(side_by_side, "N_THREADS", 4)
    write_random_run(tmp_path / "b", rows, dtype)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_of_several_layers_that_fail_side_by_side_the_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "N_THREADS", 4)
    rows = random_rows(200, tuple(range(9)), 64)
    rows.x[7, 3, 5] = rows.x[2, 6, 1] = float("nan")
    with pytest.raises(ProofError, match="layer 3"):
        write_random_run(tmp_path, rows)
    assert not list((tmp_path / "hidden_states").rglob("*.*"))


@pytest.mark.parametrize("n_threads", [1, 4])
def test_nothing_goes_on_beside_once_it_is_closed(monkeypatch: pytest.MonkeyPatch, n_threads: int) -> None:
    monkeypatch.setattr(side_by_side, "N_THREADS", n_threads)
    begun, done = [], []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.02)
        if item == 2:
            raise RunError(f"layer {item}")
        done.append(item)
        return item * item

    with closing(side_by_side.SideBySide()) as beside:
        assert [f.result() for f in [beside.submit(work, item) for item in (1, 5, 4)]] == [1, 25, 16]

    def fail() -> None:
        with closing(side_by_side.SideBySide()) as beside:
            results = [beside.submit(work, item) for item in (2, *range(100, 200))]
            results[0].result()

    with pytest.raises(RunError, match="layer 2"):
        fail()
    assert len(begun) - len(done) == 1
    assert len(begun) < 50
    time.sleep(0.1)
    assert len(begun) - len(done) == 1


def test_several_threads_may_write_shards_at_once(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path / "a", made)
    with RunWriter.open(tmp_path / "b", made.header) as writer:
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(writer.write, made.shards))) == len(made.shards)
        writer.close()
    one, other = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert sorted(one.pop("journal.jsonl").split()) == sorted(other.pop("journal.jsonl").split())
    assert one == other


def test_a_shard_that_is_being_written_is_refused_and_those_beside_it_are_room_that_is_taken(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, asked = Semaphore(0), Event(), []

    def check(_out: Path, n_bytes: int, min_free_bytes: int) -> None:
        asked.append((n_bytes, min_free_bytes))
        begun.release()
        assert go_on.wait(10)

    monkeypatch.setattr("easysteer_data.shards.shard_files.check_space", check)
    with RunWriter.open(tmp_path, made.header, min_free_bytes=10) as writer, ThreadPoolExecutor(2) as pool:
        first = pool.submit(writer.write, made.shards[0])
        assert begun.acquire(timeout=10)
        with pytest.raises(RunError, match="shard 0 is being written already"):
            writer.write(made.shards[0])
        second = pool.submit(writer.write, made.shards[1])
        assert begun.acquire(timeout=10)
        go_on.set()
        first.result()
        second.result()
        with pytest.raises(RunError, match="shard 0 is committed already"):
            writer.write(made.shards[0])
    assert [min_free for _, min_free in asked] == [10, 10 + asked[0][0]]


def test_shards_may_come_in_any_order(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path / "a", made)
    write_run(tmp_path / "b", dataclasses.replace(made, shards=made.shards[::-1]))
    one, other = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert sorted(one.pop("journal.jsonl").split()) == sorted(other.pop("journal.jsonl").split())
    assert one == other


def test_the_manifest_lists_every_file_with_its_size_and_hash(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    listed = [file for shard in manifest["shards"] for file in shard["files"]] + [manifest["statistics"]]
    files = files_of(tmp_path)
    assert {file["name"] for file in listed} == files.keys() - {"manifest.json", "journal.jsonl", "run.json"}
    for file in listed:
        assert file["bytes"] == len(files[file["name"]])
        assert file["sha256"] == hashlib.sha256(files[file["name"]]).hexdigest()
    n_bytes = sum(file["bytes"] for file in listed) - manifest["statistics"]["bytes"]
    assert manifest["totals"] == {"rows": 17, "prompts": 8, "bytes": n_bytes}
    assert manifest["streams"]["hidden_states"] == HIDDEN.to_json()
    assert manifest["plan"] == [shard["prompts"] for shard in manifest["shards"]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3"])
def test_rows_stored_as_captured_or_converted_have_the_hash_of_their_file(tmp_path: Path, dtype: str) -> None:
    write_random_run(tmp_path, random_rows(40, (0, 3), 16), dtype)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    for file in (file for shard in manifest["shards"] for file in shard["files"]):
        assert file["sha256"] == hashlib.sha256((tmp_path / file["name"]).read_bytes()).hexdigest()


def test_a_file_written_without_a_hash_has_none_to_tell(tmp_path: Path) -> None:
    with DurableFile(tmp_path / "a", hashed=False) as file:
        file.write(b"one")
    assert ((tmp_path / "a").read_bytes(), file.n_bytes) == (b"one", 3)
    with pytest.raises(ValueError, match="without a hash"):
        _ = file.sha256


def test_the_journal_has_the_manifests_entries_a_line_each(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads((tmp_path / "manifest.json").read_bytes())[
        "shards"
    ]


def test_the_prompt_table_holds_what_belongs_to_a_prompt(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    tables = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "prompts").iterdir())]
    assert [len(table) for table in tables] == [stop - start for start, stop in made.header.plan]
    for row, captured in zip((row for table in tables for row in table), made.prompts, strict=True):
        prompt = captured.prompt
        assert (row["index"], row["id"], row["text"]) == (prompt.index, prompt.id, prompt.text)
        assert (row["source"], row["group"], row["split"]) == (prompt.source, prompt.group, prompt.split)
        assert row["label"] == prompt.label
        assert row["label_value"] == {"no": 0, "yes": 1, None: -1}[prompt.label] or prompt.label is None
        assert json.loads(row["fields"]) == prompt.fields
        assert row["token_ids"] == list(prompt.token_ids)
        assert row["n_prompt_tokens"] == len(prompt.token_ids)
        assert row["n_rows"] == captured.n_rows
        assert row["generated_text"] == captured.generated_text
        assert row["generated_token_ids"] == list(captured.generated_token_ids)


def test_the_header_reads_back_as_it_was_written(tmp_path: Path) -> None:
    streams = {"attention_heads": StreamHeader((1,), 4, "float16", {"num_heads": 2, "head_size": 2})}
    made = make_run(streams=streams, label=LabelHeader("numeric"), tokenisation={"n_bos": 8})
    with RunWriter.open(tmp_path, made.header) as writer:
        pass
    with RunWriter.open(tmp_path, dataclasses.replace(made.header, versions={"torch": "3"})) as again:
        assert writer.header == again.header == made.header


def test_a_continued_run_knows_its_committed_shards_and_ends_the_same(tmp_path: Path, made: Made) -> None:
    whole = tmp_path / "whole"
    write_run(whole, made)
    out = tmp_path / "continued"
    write_shard(out, made, 1)
    with RunWriter.open(out, made.header) as writer:
        assert writer.done == {1}
        with pytest.raises(RunError, match="2 of 3 shards are not written: 0, 2"):
            writer.close()
    write_run(out, made)
    assert done_in(out, made) == {0, 1, 2}
    names = ("journal.jsonl",)  # lists the shards in the order in which they were committed
    one, other = files_of(whole), files_of(out)
    assert {n: d for n, d in one.items() if n not in names} == {
        n: d for n, d in other.items() if n not in names
    }


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"short")])
@pytest.mark.parametrize(
    "name",
    ["hidden_states/layer-003/shard-000001.tar", "prompts/shard-000001.parquet", "index/shard-000001.json"],
)
def test_a_shard_with_a_missing_or_resized_file_is_done_again(
    tmp_path: Path, made: Made, name: str, damage: Callable[[Path], None]
) -> None:
    write_run(tmp_path, made)
    before = files_of(tmp_path)
    assert finished_run(tmp_path, made.header.fingerprint) is not None
    damage(tmp_path / name)
    assert finished_run(tmp_path, made.header.fingerprint) is None
    writer = RunWriter.open(tmp_path, made.header)
    assert writer.done == {0, 2}
    assert not (tmp_path / "manifest.json").exists()
    writer.write(made.shards[1])
    writer.close()
    after = files_of(tmp_path)
    assert before.keys() == after.keys()
    assert all(before[key] == after[key] for key in before if key != "journal.jsonl")


def test_a_torn_last_journal_line_is_a_shard_that_is_not_done(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    before = files_of(tmp_path)
    journal = tmp_path / "journal.jsonl"
    lines = before["journal.jsonl"].splitlines(keepends=True)
    start = len(lines[0] + lines[1])
    for cut in (start + 1, start + 40, len(before["journal.jsonl"]) - 1):
        journal.write_bytes(before["journal.jsonl"][:cut])
        assert done_in(tmp_path, made) == {0, 1}
        write_run(tmp_path, made)
        assert files_of(tmp_path) == before
    journal.write_bytes(lines[0] + lines[1] + bytes(40) + b"\n")  # blocks that never reached the disk
    assert done_in(tmp_path, made) == {0, 1}


def test_a_damaged_journal_line_before_the_last_is_an_error(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(lines[0] + b"{}\n" + lines[2])
    with pytest.raises(RunError, match=r"journal\.jsonl, line 2: .*delete this line"):
        RunWriter.open(tmp_path, made.header)


def test_a_journal_can_not_lead_out_of_the_folder(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace("prompts/shard-000000.parquet", "../../etc/passwd"))
    with pytest.raises(
        RunError, match=r"shard 0 must consist of its own files only; odd: \.\./\.\./etc/passwd"
    ):
        RunWriter.open(tmp_path, made.header)


@pytest.mark.parametrize("change", [('"prompts":[0,4]', '"prompts":[0,3]'), ('"shard":0', '"shard":3')])
def test_a_journal_of_another_plan_is_refused(tmp_path: Path, made: Made, change: tuple[str, str]) -> None:
    write_run(tmp_path, made)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace(*change))
    with pytest.raises(RunError, match=r"there is no shard \d of prompts"):
        RunWriter.open(tmp_path, made.header)


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path: Path, made: Made) -> None:
    write_shard(tmp_path, made, 0)
    before = files_of(tmp_path)
    for name in ("hidden_states/layer-003/.shard-000001.tar.partial", ".manifest.json.partial"):
        (tmp_path / name).write_bytes(b"half")
    assert done_in(tmp_path, made) == {0}
    assert files_of(tmp_path) == before


def test_a_folder_where_only_the_first_file_was_begun_is_taken(tmp_path: Path, made: Made) -> None:
    (tmp_path / ".run.json.partial").write_bytes(b"{")
    write_run(tmp_path, made)
    assert not (tmp_path / ".run.json.partial").exists()


def test_other_settings_are_refused_with_the_difference_and_touch_nothing(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    (tmp_path / "index" / ".shard-000000.json.partial").write_bytes(b"half")
    before = files_of(tmp_path)
    settings = {"select": {"prompt": "last", "window": [0, 3]}, "shards": {"min_shards": 3}}
    other = dataclasses.replace(made.header, fingerprint="b2", settings=settings)
    with pytest.raises(
        SettingsMismatchError, match="choose another output folder, or replace this run"
    ) as caught:
        RunWriter.open(tmp_path, other)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        'fingerprint: "a1" -> "b2"',
        'settings.select.prompt: "all" -> "last"',
        "settings.select.window: (absent) -> [0, 3]",
    ]
    assert files_of(tmp_path) == before


def test_another_plan_is_refused_even_under_the_same_fingerprint(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    with pytest.raises(SettingsMismatchError, match="plan: "):
        RunWriter.open(tmp_path, make_run(n_shards=2).header)


def test_settings_of_tuples_are_the_same_settings(tmp_path: Path) -> None:
    layout = {"shape": (2, 3)}
    made = make_run(streams={"hidden_states": StreamHeader((0,), 6, "float32", layout)})
    write_run(tmp_path, made)
    assert done_in(tmp_path, made) == {0, 1, 2}


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path, made: Made) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"not empty \(it holds thesis\.tex\) and has no run\.json"):
        RunWriter.open(tmp_path, made.header)
    assert files_of(tmp_path) == {"thesis.tex": b"precious"}
    with pytest.raises(RunError, match="is a file"):
        RunWriter.open(tmp_path / "thesis.tex", made.header)


def test_a_run_of_another_schema_version_is_refused(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"schema_version": 2', '"schema_version": 1'))
    with pytest.raises(RunError, match="schema version 1, but this package reads 2"):
        RunWriter.open(tmp_path, made.header)
    assert finished_run(tmp_path, "a1") is not None  # the manifest is its own record


def test_a_finished_run_is_found_by_its_fingerprint_only(tmp_path: Path, made: Made) -> None:
    assert finished_run(tmp_path, "a1") is None
    manifest = write_run(tmp_path, made)
    assert finished_run(tmp_path, "a1") == manifest
    assert finished_run(tmp_path, "b2") is None
    (tmp_path / "manifest.json").write_text("{")
    assert finished_run(tmp_path, "a1") is None
    assert write_run(tmp_path, made) == manifest


def test_equal_settings_have_one_fingerprint_whatever_their_order() -> None:
    one = fingerprint_of({"a": 1, "b": {"c": [1, 2.5], "d": None}})
    assert one == fingerprint_of({"b": {"d": None, "c": [1, 2.5]}, "a": 1})
    assert one == hashlib.sha256(b'{"a":1,"b":{"c":[1,2.5],"d":null}}').hexdigest()
    with pytest.raises(RunError, match="plain, finite JSON"):
        fingerprint_of({"a": float("nan")})
    with pytest.raises(RunError, match="plain, finite JSON"):
        fingerprint_of({"a": Path("x")})


def with_index(shard: CapturedShard, **columns: torch.Tensor) -> CapturedShard:
    return dataclasses.replace(shard, index=dataclasses.replace(shard.index, **columns))


def with_rows(shard: CapturedShard, layer_id: int, rows: torch.Tensor) -> CapturedShard:
    layers = {**shard.values["hidden_states"], layer_id: rows}
    return dataclasses.replace(shard, values={"hidden_states": layers})


def without_layer(shard: CapturedShard) -> CapturedShard:
    return dataclasses.replace(shard, values={"hidden_states": {0: shard.values["hidden_states"][0]}})


BROKEN: dict[str, tuple[Callable[[CapturedShard], CapturedShard], str]] = {
    "unplanned number": (lambda s: dataclasses.replace(s, number=3), "the plan has shards 0 to 2"),
    "another shard's prompts": (lambda s: dataclasses.replace(s, number=1), "must hold prompts"),
    "a missing prompt": (lambda s: dataclasses.replace(s, prompts=s.prompts[:-1]), "must hold prompts 0 to"),
    "no prompts": (lambda s: dataclasses.replace(s, prompts=()), "found 0: none"),
    "int64 prompts": (lambda s: with_index(s, prompt=s.index.prompt.long()), "prompt must be int32"),
    "short token ids": (lambda s: with_index(s, token_id=s.index.token_id[1:]), "token_id must be int32"),
    "rows out of order": (lambda s: with_index(s, prompt=s.index.prompt.flip(0)), "counts of rows"),
    "a row twice": (lambda s: with_index(s, position=s.index.position * 0), "ascend within a prompt"),
    "a row too few": (
        lambda s: dataclasses.replace(
            s, index=RowIndex(*(c[1:] for c in (s.index.prompt, s.index.position, s.index.token_id)))
        ),
        "counts of rows",
    ),
    "a missing layer": (without_layer, r"has layers \[0\] of hidden_states"),
    "no stream": (lambda s: dataclasses.replace(s, values={}), r"has streams \[\]"),
    "another dtype": (
        lambda s: with_rows(s, 3, s.values["hidden_states"][3].double()),
        "layer 3: must be float32, bfloat16 or float16 .*found float64",
    ),
    "another width": (
        lambda s: with_rows(s, 3, s.values["hidden_states"][3][:, 1:]),
        "layer 3: must be float32",
    ),
    "another device": (
        lambda s: with_rows(s, 3, s.values["hidden_states"][3].to("meta")),
        "layer 3: must be in host memory, found it on meta",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_shard_that_is_not_as_planned_is_refused_before_anything_is_written(
    tmp_path: Path, made: Made, name: str
) -> None:
    writer = RunWriter.open(tmp_path, made.header)
    before = files_of(tmp_path)
    damage, message = BROKEN[name]
    with pytest.raises(RunError, match=message):
        writer.write(damage(made.shards[0]))
    assert files_of(tmp_path) == before
    assert writer.done == frozenset()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_refused_by_prompt_and_position(
    tmp_path: Path, made: Made, value: float
) -> None:
    shard = made.shards[0]
    rows = shard.values["hidden_states"][3].clone()
    rows[1, 4] = value
    writer = RunWriter.open(tmp_path, made.header)
    with pytest.raises(ProofError, match=r"layer 3, prompt 0 \(corpus\.jsonl:1\), position 3: .*not finite"):
        writer.write(with_rows(shard, 3, rows))
    assert not [*(tmp_path / "hidden_states").rglob("*.tar")]


@pytest.mark.parametrize("n_bytes", [700, 3000, 4500])
def test_a_full_disk_stops_cleanly_and_the_run_can_be_continued(
    tmp_path: Path, made: Made, n_bytes: int
) -> None:
    write_run(tmp_path / "whole", made)
    out = tmp_path / "out"
    with RunWriter.open(out, made.header) as writer:
        before = files_of(out)
        with disk_with_room_for(n_bytes), pytest.raises(RunError, match=r"File too large.*shards are kept"):
            writer.write(made.shards[0])
        assert writer.done == frozenset()
        left = files_of(out)
    assert not [name for name in left if name.endswith(".partial")]
    assert all(left[name] == before[name] for name in before)
    write_run(out, made)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_committed_shard_is_not_written_twice(tmp_path: Path, made: Made) -> None:
    writer = RunWriter.open(tmp_path, made.header)
    writer.write(made.shards[0])
    with pytest.raises(RunError, match="shard 0 is committed already"):
        writer.write(made.shards[0])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (LabelHeader("classes", ("a",)), "is none of the run's classes"),
        (LabelHeader("numeric"), "is no number"),
    ],
)
def test_a_label_that_is_not_of_the_runs_kind_names_its_prompt(
    tmp_path: Path, made: Made, label: LabelHeader, message: str
) -> None:
    writer = RunWriter.open(tmp_path, dataclasses.replace(made.header, label=label))
    with pytest.raises(RunError, match=rf"corpus\.jsonl:1: label 'yes' {message}"):
        writer.write(made.shards[0])


def test_text_that_utf8_can_not_hold_is_refused(tmp_path: Path, made: Made) -> None:
    first, *rest = made.shards[0].prompts
    broken = dataclasses.replace(first, prompt=dataclasses.replace(first.prompt, text="\ud800"))
    shard = dataclasses.replace(made.shards[0], prompts=(broken, *rest))
    with pytest.raises(RunError, match=r"prompts from corpus\.jsonl:1 on"):
        RunWriter.open(tmp_path, made.header).write(shard)


def header_with(**changes: object) -> Callable[[], RunHeader]:
    return lambda: dataclasses.replace(make_run().header, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (header_with(fingerprint=""), "needs a fingerprint"),
        (header_with(streams={}), "at least one stream"),
        (header_with(streams={"logits": HIDDEN}), "stream must be one of"),
        (header_with(plan=()), "begin at 0"),
        (header_with(plan=((1, 2),)), "begin at 0"),
        (header_with(plan=((0, 2), (2, 2))), "non-empty"),
        (header_with(plan=((0, 2), (3, 4))), "consecutive"),
        (header_with(plan=((0, 2**31),)), "at most 2147483647 prompts"),
        (lambda: StreamHeader((), 4, "float32"), "ascending"),
        (lambda: StreamHeader((3, 1), 4, "float32"), "ascending"),
        (lambda: StreamHeader((1,), 0, "float32"), "width"),
        (lambda: StreamHeader((1,), 4, "float64"), "storage dtype"),
        (lambda: LabelHeader("classes"), "belong to label kind"),
        (lambda: LabelHeader("numeric", ("a",)), "belong to label kind"),
        (lambda: LabelHeader("classes", ("a", "a")), "must differ"),
        (lambda: LabelHeader("ordinal"), "label kind must be"),  # type: ignore[arg-type]
    ],
)
def test_headers_that_make_no_sense_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(RunError, match=message):
        build()
