"""Inspection finds every bad file by name, and repair has exactly the bad shards captured again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from easysteer_data.errors import RunError
from easysteer_data.shards import (
    LabelHeader,
    RunInspection,
    RunWriter,
    StreamHeader,
    inspect_run,
    open_run,
    repair_run,
)
from easysteer_data.types import SPLITS
from tests.shards.made import Made, files_of, make_run, write_run

TAR = "hidden_states/layer-003/shard-000001.tar"
INDEX = "index/shard-000001.json"
PROMPTS = "prompts/shard-000001.parquet"
STATISTICS = "statistics/shard-000001.safetensors"


@pytest.fixture
def made() -> Made:
    return make_run()


@pytest.fixture
def folder(tmp_path: Path, made: Made) -> Path:
    write_run(tmp_path / "run", made)
    return tmp_path / "run"


def reasons(inspection: RunInspection) -> dict[str, str]:
    return {fault.name: fault.reason for fault in inspection.bad}


def finish(folder: Path, made: Made) -> list[int]:
    """Capture again what is not done, as the pipeline does; returns the shards that were."""
    with RunWriter.open(folder, made.header) as writer:
        todo = [shard for shard in made.shards if shard.number not in writer.done]
        for shard in todo:
            writer.write(shard)
        writer.close()
    return [shard.number for shard in todo]


def flip_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def test_a_whole_run_is_ok_and_its_table_has_its_figures(folder: Path, made: Made) -> None:
    inspection = inspect_run(folder)
    assert inspection.ok
    assert inspection.bad == ()
    assert inspection.failure == ""
    table = inspection.table()
    n_bytes = open_run(folder).manifest.n_bytes
    splits = Counter(captured.prompt.split for captured in made.prompts)
    for line in (
        f"run: {folder}",
        "state: finished",
        "fingerprint: a1",
        "model: name tiny",
        "corpus: sha256 c0",
        "versions: torch 2",
        "hidden_states: 3 layers (0, 3, 12) of width 6, float32",
        f"8 prompts, 17 rows a layer, {n_bytes:,} bytes",
        "splits, in prompts: " + ", ".join(f"{split} {splits[split]}" for split in SPLITS),
        "labels, in prompts: no 3, yes 3, (none) 2",
        "ok",
    ):
        assert line in table.splitlines()
    shards = [line.split() for line in table.splitlines() if line.endswith("  ok")]
    entries = open_run(folder).manifest.shards
    assert [int(words[0]) for words in shards] == [0, 1, 2]
    assert [int(words[4]) for words in shards] == [entry.n_rows for entry in entries]
    assert [int(words[5].replace(",", "")) for words in shards] == [entry.n_bytes for entry in entries]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "int8"])
@pytest.mark.parametrize("rows", [True, False])
def test_runs_of_every_storage_type_are_ok(tmp_path: Path, dtype: str, rows: bool) -> None:
    streams = {
        "hidden_states": StreamHeader((0, 1), 6, dtype),
        "router_logits": StreamHeader((1,), 3, dtype),
    }
    made = make_run(streams=streams, label=LabelHeader("numeric"), rows=rows)  # type: ignore[arg-type]
    write_run(tmp_path, made)
    assert inspect_run(tmp_path).bad == ()
    assert inspect_run(str(tmp_path)).ok


def test_truncated_altered_gzipped_and_deleted_shards_are_all_listed_by_name_and_recaptured_alone(
    tmp_path: Path,
) -> None:
    made = make_run([2, 3, 1, 2, 4, 1, 3, 2, 2, 1, 3, 2], n_shards=6)
    write_run(tmp_path, made)
    whole = files_of(tmp_path)
    truncated, altered, gzipped, deleted = (
        f"hidden_states/layer-{layer_id:03d}/shard-{number:06d}.tar"
        for layer_id, number in ((0, 1), (3, 2), (12, 3), (3, 5))
    )
    (tmp_path / truncated).write_bytes(whole[truncated][:-700])
    flip_byte(tmp_path / altered, len(whole[altered]) // 2)
    (tmp_path / gzipped).write_bytes(gzip.compress(whole[gzipped]))
    (tmp_path / deleted).unlink()
    inspection = inspect_run(tmp_path)
    n_bytes = len(whole[truncated])
    assert reasons(inspection) == {
        truncated: f"{n_bytes - 700} bytes, should be {n_bytes}",
        altered: "altered, its sha256 is not the manifest's",
        gzipped: "is a gzip file with the name of a tar",
        deleted: "missing",
    }
    assert inspection.finished
    assert not inspection.ok
    assert inspection.failure == f"{tmp_path}: 4 bad files, 4 of 6 shards are bad"
    assert [shard.state for shard in inspection.shards] == ["ok", "BAD", "BAD", "BAD", "ok", "BAD"]
    assert all(f"  {name}: " in inspection.table() for name in (truncated, altered, gzipped, deleted))
    inodes = {
        name: (tmp_path / name).stat().st_ino
        for name in whole
        if name.endswith((".tar", ".parquet"))
        if name not in (truncated, altered, gzipped, deleted)
    }

    assert repair_run(tmp_path).bad == inspection.bad
    left = files_of(tmp_path)
    assert whole.keys() - left.keys() == {truncated, altered, gzipped, deleted, "manifest.json"}
    marked = inspect_run(tmp_path)
    assert [shard.state for shard in marked.shards] == [
        "ok",
        "missing",
        "missing",
        "missing",
        "ok",
        "missing",
    ]
    assert finish(tmp_path, made) == [1, 2, 3, 5]
    after = files_of(tmp_path)
    assert after.keys() == whole.keys()
    assert {name for name in whole if after[name] != whole[name]} <= {"journal.jsonl"}
    kept = [name for name in inodes if any(f"shard-00000{number}" in name for number in (0, 4))]
    assert all((tmp_path / name).stat().st_ino == inodes[name] for name in kept)
    assert inspect_run(tmp_path).ok


def test_a_flipped_byte_anywhere_names_its_file(folder: Path) -> None:
    chance = random.Random(0)
    names = [
        name for name in files_of(folder) if name.startswith(("hidden", "prompts", "statistics", "index"))
    ]
    for name in chance.choices(names, k=40):
        data = (folder / name).read_bytes()
        flip_byte(folder / name, chance.randrange(2, len(data)))
        assert reasons(inspect_run(folder)) == {name: "altered, its sha256 is not the manifest's"}
        (folder / name).write_bytes(data)
    assert inspect_run(folder).ok


def vouch_for(folder: Path, name: str, data: bytes) -> None:
    """Write a file, and enter its size and hash in the run's records, as whoever forges a run would."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for file in [file for shard in manifest["shards"] for file in shard["files"]] + [manifest["statistics"]]:
        if file["name"] == name:
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["totals"]["bytes"] = sum(f["bytes"] for shard in manifest["shards"] for f in shard["files"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "journal.jsonl").write_text("".join(json.dumps(s) + "\n" for s in manifest["shards"]))


Members = list[tuple[str, bytes]]


def members_of(data: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m.name, file.read()) for m in tar if (file := tar.extractfile(m)) is not None]


def tar_of(members: Members) -> bytes:
    """The same archive by way of the standard library, without its padding to whole records."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        n_bytes = tar.offset
    return out.getvalue()[: n_bytes + 1024]


def with_first(members: Members, change: Callable[[dict[str, torch.Tensor]], object]) -> Members:
    """The first pack's tensors changed in place, its bytes laid out as before."""
    (name, data), *rest = members
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n_header])
    tensors = safetensors.torch.load(data)
    change(tensors)
    order = sorted(header, key=lambda key: header[key]["data_offsets"][0])
    body = b"".join(tensors[key].contiguous().view(torch.uint8).numpy().tobytes() for key in order)
    return [(name, data[: 8 + n_header] + body), *rest]


def about(members: Members, **changes: object) -> Members:
    first, (name, data), *rest = members
    return [first, (name, json.dumps({**json.loads(data), **changes}).encode()), *rest]


FORGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no end blocks": (lambda d: d[:-1024], "does not end with two empty blocks"),
    "one end block": (lambda d: d[:-512], "does not end with two empty blocks"),
    "bytes behind the end": (lambda d: d + bytes(512), "does not end with two empty blocks"),
    "an end too early": (lambda d: bytes(len(d)), "ends before its member s000001-p000000.safetensors"),
    "cut within a member": (lambda d: d[: -3 * 512], "ends within its member s000001-p000001.json"),
    "a member's size of gigabytes": (
        lambda d: d[:124] + b"7" * 11 + d[135:],
        "no proper header of its member s000001-p000000.safetensors",
    ),
    "members in another order": (
        lambda d: tar_of(members_of(d)[2:4] + members_of(d)[:2] + members_of(d)[4:]),
        "no proper header of its member s000001-p000000.safetensors, but of 's000001-p000001.safetensors'",
    ),
    "a member of another name": (
        lambda d: tar_of([("x.pth", members_of(d)[0][1]), *members_of(d)[1:]]),
        "but of 'x.pth'",
    ),
    "a member too few": (lambda d: tar_of(members_of(d)[:-1]), "ends before its member"),
    "a member too many": (lambda d: tar_of([*members_of(d), ("y.json", b"{}")]), "does not end with two"),
    "a row that is not finite": (
        lambda d: tar_of(with_first(members_of(d), lambda t: t["rows"][0].fill_(float("nan")))),
        "s000001-p000000: rows of prompt 4, position 0 are not finite",
    ),
    "a row of another prompt": (
        lambda d: tar_of(with_first(members_of(d), lambda t: t["prompt"].fill_(5))),
        "the prompt table counts other rows than the tar holds",
    ),
    "tensors elsewhere": (
        lambda d: tar_of([(members_of(d)[0][0], moved(members_of(d)[0][1])), *members_of(d)[1:]]),
        "does not lie where the index says",
    ),
    "no tensors": (
        lambda d: tar_of([(members_of(d)[0][0], b"\x80\x04pickle"), *members_of(d)[1:]]),
        "no readable tensors",
    ),
    "another layer's description": (
        lambda d: tar_of(about(members_of(d), layer_id=0)),
        "s000001-p000000.json: layer_id must be 3, is 0",
    ),
    "another count of rows": (
        lambda d: tar_of(about(members_of(d), n_rows=99)),
        "s000001-p000000.json: n_rows must be",
    ),
}


def moved(data: bytes) -> bytes:
    """The same tensors behind a longer header."""
    n_header = int.from_bytes(data[:8], "little")
    return (n_header + 8).to_bytes(8, "little") + data[8 : 8 + n_header] + b" " * 8 + data[8 + n_header :]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_tar_is_found_even_with_a_matching_hash(folder: Path, name: str) -> None:
    data = (folder / TAR).read_bytes()
    assert tar_of(members_of(data)) == data
    change, reason = FORGED[name]
    vouch_for(folder, TAR, change(data))
    found = reasons(inspect_run(folder))
    assert found.keys() == {TAR}
    assert reason in found[TAR]


def without_column(data: bytes) -> bytes:
    return parquet(pq.read_table(io.BytesIO(data)).drop_columns(["text"]))


def with_counts(data: bytes, first: int) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    place = table.column_names.index("n_rows")
    counts = pa.array([first, *table["n_rows"].to_pylist()[1:]], pa.int32())
    return parquet(table.set_column(place, table.schema.field("n_rows"), counts))


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def doubled(data: bytes) -> bytes:
    tensors = safetensors.torch.load(data)
    return safetensors.torch.save({n: t * 2 if n.endswith("/count") else t for n, t in tensors.items()})


def not_finite(data: bytes) -> bytes:
    tensors = safetensors.torch.load(data)
    return safetensors.torch.save({n: t / 0 if n.endswith("/max_abs") else t for n, t in tensors.items()})


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (INDEX, lambda _: b"{", "not readable as JSON"),
        (INDEX, lambda d: d.replace(b'"first_row":0', b'"first_row":1'), "the packs do not add up"),
        (PROMPTS, without_column, "is no prompt table"),
        (PROMPTS, lambda d: with_counts(d, 9), "counts "),
        (PROMPTS, lambda _: b"PAR1", "can't be read"),
        (STATISTICS, lambda _: bytes(16), "no usable statistics of hidden_states/layer-000"),
        (STATISTICS, doubled, "rows, not "),
        (STATISTICS, not_finite, "are not finite"),
        (
            "statistics.safetensors",
            doubled,
            "the statistics of hidden_states/layer-000 are of 34 rows, not 17",
        ),
    ],
)
def test_forged_files_beside_the_tars_are_found(
    folder: Path, name: str, change: Callable[[bytes], bytes], reason: str
) -> None:
    vouch_for(folder, name, change((folder / name).read_bytes()))
    found = reasons(inspect_run(folder))
    assert found.keys() == {name}
    assert reason in found[name]


def test_an_unfinished_run_shows_what_is_done_and_what_is_missing(tmp_path: Path, made: Made) -> None:
    with RunWriter.open(tmp_path, made.header) as writer:
        writer.write(made.shards[1])
        inspection = inspect_run(tmp_path)  # a writer hinders no reader
    assert not inspection.ok
    assert inspection.bad == ()
    assert inspection.failure == f"{tmp_path}: unfinished, 1 of 3 shards are done"
    assert [shard.state for shard in inspection.shards] == ["missing", "ok", "missing"]
    assert "state: unfinished, 1 of 3 shards done" in inspection.table()
    (tmp_path / TAR).write_bytes(b"")
    assert reasons(inspect_run(tmp_path)).keys() == {TAR}
    before = files_of(tmp_path)
    assert repair_run(tmp_path).failure.endswith(
        "unfinished, 1 of 3 shards are done; 1 bad files, 1 of 3 shards are bad"
    )
    assert before.keys() - files_of(tmp_path).keys() == {TAR}
    assert finish(tmp_path, made) == [0, 1, 2]


RECORDS: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "a damaged manifest": ("manifest.json", lambda d: d[:-100], "not readable as JSON"),
    "a manifest of other totals": (
        "manifest.json",
        lambda d: d.replace(b'"rows": 17', b'"rows": 18'),
        "totals",
    ),
    "a damaged journal": ("journal.jsonl", lambda d: b"{}\n" + d, "line 1"),
    "a journal that lost a shard": ("journal.jsonl", lambda d: d[d.index(b"\n") + 1 :], "lists other shards"),
    "no journal": ("journal.jsonl", lambda _: None, "lists other shards than the manifest"),
    "no run.json": ("run.json", lambda _: None, "can't be read"),
    "a run.json of other settings": ("run.json", lambda d: d.replace(b'"a1"', b'"a2"'), "is not the header"),
    "no merged statistics": ("statistics.safetensors", lambda _: None, "missing"),
    "other merged statistics": ("statistics.safetensors", lambda d: d[:-1] + b"x", "altered"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_bad_records_of_a_run_are_named_and_mended_without_any_capture(
    folder: Path, made: Made, name: str
) -> None:
    whole = files_of(folder)
    file, change, reason = RECORDS[name]
    data = change((folder / file).read_bytes())
    (folder / file).unlink() if data is None else (folder / file).write_bytes(data)
    found = reasons(repair_run(folder))
    assert found.keys() == {file}
    assert reason in found[file]
    assert finish(folder, made) == []
    assert files_of(folder) == whole


def test_a_run_without_a_fault_is_left_as_it_is_by_repair(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert repair_run(folder).ok
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_repair_is_refused_while_the_run_is_written(folder: Path, made: Made) -> None:
    flip_byte(folder / TAR, 600)
    before = files_of(folder)
    with RunWriter.open(folder, made.header):
        with pytest.raises(RunError, match="is being written by process"):
            repair_run(folder)
    assert files_of(folder) == before


def test_what_is_no_run_can_not_be_inspected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="gone: no such folder"):
        inspect_run(tmp_path / "gone")
    (tmp_path / "thesis.tex").write_text("precious")
    for inspect in (inspect_run, repair_run):
        with pytest.raises(RunError, match=r"is no run folder, or a damaged one: run\.json: can't be read"):
            inspect(tmp_path)
    assert files_of(tmp_path) == {"thesis.tex": b"precious"}


def test_a_damaged_journal_of_an_unfinished_run_is_an_error_that_names_the_line(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "journal.jsonl").write_bytes(b"{}\n" + (folder / "journal.jsonl").read_bytes())
    with pytest.raises(RunError, match=r"journal\.jsonl, line 1: .*delete this line"):
        inspect_run(folder)


def test_the_table_shows_where_a_run_comes_from_and_shortens_hashes(tmp_path: Path) -> None:
    names = tuple(f"class-{i}" for i in range(40))
    sha256 = hashlib.sha256(b"weights").hexdigest()
    made = make_run(
        label=LabelHeader("classes", ("no", "yes", *names)),
        fingerprint=sha256,
        model={"name": "tiny", "sha256": {"model.safetensors": sha256}},
        tokenizer={"sha256": sha256},
        tokenisation={"n_bos": 8, "truncated": 0},
        provenance={"hardware": {"device": "CPU", "n": 2}},
    )
    with RunWriter.open(tmp_path, made.header) as writer:
        for shard in made.shards:
            writer.write(shard)
        writer.close({"n_tokens": 25, "gates": {"zero_rows": 0}})
    table = inspect_run(tmp_path).table()
    assert sha256 not in table
    assert f"fingerprint: {sha256[:12]}" in table
    assert f"tokenizer: sha256 {sha256[:12]}" in table
    assert "tokenisation: n_bos 8, truncated 0" in table
    assert "provenance: hardware (device CPU, n 2)" in table
    assert "measured: gates (zero_rows 0), n_tokens 25" in table
    assert all(len(line) <= 80 for line in table.splitlines() if not line.startswith("run: "))
