from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.errors import BadShardError, EasySteerDataError, RunError
from easysteer_data.shards import open_run
from tests.shards.made import make_run, write_run

TAR = "hidden_states/layer-003/shard-000001.tar"
INDEX = "index/shard-000001.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path, make_run())
    return tmp_path


def vouch_for(folder: Path, name: str) -> None:
    """Enter an altered file's size and hash in the manifest, as whoever forges a run would."""
    data = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for file in [file for shard in manifest["shards"] for file in shard["files"]] + [manifest["statistics"]]:
        if file["name"] == name:
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["totals"]["bytes"] = sum(f["bytes"] for shard in manifest["shards"] for f in shard["files"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def alter_json(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    value = json.loads((folder / name).read_bytes())
    change(value)
    (folder / name).write_text(json.dumps(value))


def read_everything(folder: Path) -> None:
    run = open_run(folder)
    for stream, layer_ids in run.streams.items():
        run.gather(stream, layer_ids, torch.arange(run.n_rows))
    assert len(run.index) == len(run.row_splits()) == run.n_rows
    assert run.labels is not None
    assert run.prompts().num_rows == run.manifest.header.n_prompts


def test_all_bad_shards_are_listed_by_name_at_once(folder: Path) -> None:
    (folder / TAR).write_bytes((folder / TAR).read_bytes()[:-512])
    (folder / "hidden_states/layer-000/shard-000002.tar").unlink()
    (folder / "prompts/shard-000000.parquet").unlink()
    with pytest.raises(BadShardError) as caught:
        open_run(folder)
    first, *lines = str(caught.value).splitlines()
    assert "3 bad files; capture again with the same settings" in first
    assert [line.split(":")[0].strip() for line in lines] == [
        "prompts/shard-000000.parquet",
        TAR,
        "hidden_states/layer-000/shard-000002.tar",
    ]
    assert lines[0].endswith("missing")


def test_an_altered_index_is_found_by_its_hash(folder: Path) -> None:
    data = (folder / INDEX).read_bytes()
    (folder / INDEX).write_bytes(data.replace(b'"first_row":0', b'"first_row":1', 1))
    with pytest.raises(BadShardError, match=rf"{INDEX}: altered"):
        open_run(folder)


def rows(value: Any) -> Any:
    return value["streams"]["hidden_states"]["3"]["rows"]


FORGED: dict[str, Callable[[Any], object]] = {
    "offset beyond the file": lambda v: rows(v)[0].__setitem__(0, 2**40),
    "offset beyond any integer": lambda v: rows(v)[0].__setitem__(0, 2**70),
    "offset that is negative": lambda v: rows(v)[0].__setitem__(0, -4),
    "offset between elements": lambda v: rows(v)[0].__setitem__(0, rows(v)[0][0] + 2),
    "offset that is a fraction": lambda v: rows(v)[0].__setitem__(0, 0.5),
    "offset that is true": lambda v: rows(v)[0].__setitem__(0, True),
    "size that is wrong": lambda v: rows(v)[0].__setitem__(1, rows(v)[0][1] * 2),
    "a span too few": lambda v: rows(v).pop(),
    "a span of three numbers": lambda v: rows(v)[0].append(1),
    "no spans": lambda v: v["streams"]["hidden_states"]["3"].pop("label"),
    "no layer": lambda v: v["streams"]["hidden_states"].pop("12"),
    "no stream": lambda v: v.update(streams=[]),
    "no packs": lambda v: v.update(packs=[]),
    "another shard": lambda v: v.update(shard=0),
    "more rows than there are": lambda v: v["packs"][-1].update(n_rows=2**62),
    "more rows than any integer": lambda v: v["packs"][-1].update(n_rows=2**70),
    "rows out of step": lambda v: v["packs"][-1].update(first_row=0),
    "prompts out of step": lambda v: v["packs"][0].update(prompts=[0, 9]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_index_is_refused_by_name_even_with_a_matching_hash(folder: Path, name: str) -> None:
    alter_json(folder, INDEX, FORGED[name])
    vouch_for(folder, INDEX)
    with pytest.raises(BadShardError, match=INDEX):
        open_run(folder)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"shard": NaN}'])
def test_an_index_that_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    vouch_for(folder, INDEX)
    with pytest.raises(BadShardError, match=INDEX):
        open_run(folder)


MANIFESTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a file elsewhere": (lambda v: v["shards"][0]["files"][0].update(name="../x.tar"), "its own files only"),
    "an absolute file": (lambda v: v["statistics"].update(name="/etc/passwd"), "statistics must be in"),
    "a shard too few": (lambda v: v["shards"].pop(), "the plan has 3 shards, the manifest 2"),
    "shards in another order": (lambda v: v["shards"].reverse(), "stands in place"),
    "a plan with a gap": (lambda v: v["plan"][1].__setitem__(0, 5), "consecutive"),
    "other totals": (lambda v: v["totals"].update(rows=3), "totals are not the sums"),
    "no shards": (lambda v: v.pop("shards"), "shards must be a list, found nothing"),
    "a stream of another name": (
        lambda v: v["streams"].update(x=v["streams"]["hidden_states"]),
        "stream must be",
    ),
    "a dtype of another name": (
        lambda v: v["streams"]["hidden_states"].update(dtype="object"),
        "storage dtype",
    ),
    "rows that are one": (lambda v: v.update(rows=1), "rows must be true or false"),
    "rows denied": (lambda v: v.update(rows=False), "its own files only"),
    "scales that are not there": (
        lambda v: v["streams"]["hidden_states"].update(dtype="int8"),
        "scale must be a list",
    ),
    "a width of petabytes": (lambda v: v["streams"]["hidden_states"].update(width=2**50), "width must be"),
    "another width": (lambda v: v["streams"]["hidden_states"].update(width=7), "can't be"),
    "more rows": (
        lambda v: (v["shards"][1].update(n_rows=10**30), v["totals"].update(rows=10**30)),
        "totals|rows",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_forged_manifest_is_refused(folder: Path, name: str) -> None:
    change, message = MANIFESTS[name]
    alter_json(folder, "manifest.json", change)
    with pytest.raises(RunError, match=message):
        open_run(folder)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_value_in_a_json_file_makes_reading_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.exists():
        write_run(folder, make_run())
    name = data.draw(st.sampled_from(["manifest.json", INDEX]))
    kept = {file: (folder / file).read_bytes() for file in ("manifest.json", INDEX)}
    value = json.loads(kept[name])
    *path, last = data.draw(st.sampled_from([*places(value)]))
    target = value
    for key in path:
        target = target[key]
    target[last] = data.draw(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]))
    )
    (folder / name).write_text(json.dumps(value))
    if name == INDEX:
        vouch_for(folder, INDEX)
    try:
        with contextlib.suppress(EasySteerDataError):
            read_everything(folder)
    finally:
        for file, before in kept.items():
            (folder / file).write_bytes(before)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *places(item, (*path, key)))]


def test_rows_of_another_shards_prompts_are_refused(folder: Path) -> None:
    path = folder / "hidden_states/layer-000/shard-000001.tar"
    offset, n_bytes = json.loads((folder / INDEX).read_bytes())["streams"]["hidden_states"]["0"]["prompt"][0]
    data = bytearray(path.read_bytes())
    data[offset : offset + n_bytes] = torch.full((n_bytes // 4,), 7, dtype=torch.int32).numpy().tobytes()
    path.write_bytes(data)
    with pytest.raises(BadShardError, match="belong to another shard"):
        read_everything(folder)


def test_labels_beyond_the_classes_are_refused(folder: Path) -> None:
    path = folder / "hidden_states/layer-000/shard-000001.tar"
    offset, n_bytes = json.loads((folder / INDEX).read_bytes())["streams"]["hidden_states"]["0"]["label"][0]
    data = bytearray(path.read_bytes())
    data[offset : offset + n_bytes] = torch.full((n_bytes // 8,), 2).numpy().tobytes()
    path.write_bytes(data)
    run = open_run(folder)
    with pytest.raises(BadShardError, match="labels beyond"):
        _ = run.labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.slice(1), "does not hold prompts"),
        (lambda t: t.drop_columns(["text"]), "is no prompt table"),
        (lambda t: set_column(t, "split", ["trian"]), "unknown split 'trian'"),
        (lambda t: set_column(t, "n_rows", [9]), "counts other rows"),
        (lambda t: set_column(t, "n_rows", [-9]), "counts other rows"),
    ],
)
def test_a_forged_prompt_table_is_refused(
    folder: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    name = "prompts/shard-000001.parquet"
    pq.write_table(change(pq.read_table(folder / name)), folder / name)
    vouch_for(folder, name)
    with pytest.raises(BadShardError, match=message):
        open_run(folder).row_splits()


def set_column(table: pa.Table, name: str, first: list[object]) -> pa.Table:
    place = table.column_names.index(name)
    values = first + table[name].to_pylist()[1:]
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def test_a_prompt_table_that_is_no_parquet_file_is_refused(folder: Path) -> None:
    name = "prompts/shard-000001.parquet"
    (folder / name).write_bytes(b"PAR1 or not")
    vouch_for(folder, name)
    with pytest.raises(BadShardError, match=rf"{name}: can't be read"):
        open_run(folder).prompts()


def without(name: str) -> Callable[[bytes], bytes]:
    """Leave a tensor of each layer out of a statistics file."""

    def change(data: bytes) -> bytes:
        tensors = safetensors.torch.load(data)
        return safetensors.torch.save({key: t for key, t in tensors.items() if not key.endswith(f"/{name}")})

    return change


def with_one_split(data: bytes) -> bytes:
    tensors = safetensors.torch.load(data)
    return safetensors.torch.save({key: t[:1] if t.dim() else t for key, t in tensors.items()})


def in_bfloat16(data: bytes) -> bytes:
    tensors = safetensors.torch.load(data)
    return safetensors.torch.save({key: t.to(torch.bfloat16) for key, t in tensors.items()})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: bytes(len(data)), ""),
        (without("mean_square"), "no 'mean_square'"),
        (without("by_label/mean"), "no 'by_label/mean'"),
        (without("min_cosine"), "no 'storage_error/min_cosine'"),
        (with_one_split, ""),
        (in_bfloat16, "bfloat16"),
    ],
)
def test_statistics_that_can_not_be_read_are_refused(
    folder: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    path = folder / "statistics.safetensors"
    path.write_bytes(change(path.read_bytes()))
    vouch_for(folder, path.name)
    with pytest.raises(BadShardError, match=rf"no usable statistics of hidden_states/layer-003.*{reason}"):
        open_run(folder).statistics("hidden_states", 3)
