from __future__ import annotations

import json
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.shards import LabelHeader, StreamHeader
from easysteer_data.shards.dtypes import STORAGE_DTYPES
from easysteer_data.shards.pack import TensorBytes, pack_columns, pack_tensors, packs_of, safetensors_header
from easysteer_data.shards.storage import encode
from tests.shards.made import YES_NO, make_run, same_bits, write_run

DTYPES = st.sampled_from([*STORAGE_DTYPES])
LABELS = st.sampled_from([YES_NO, LabelHeader("numeric"), LabelHeader()])


@given(DTYPES, LABELS, st.integers(1, 9), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_pack_is_a_safetensors_file_whose_tensors_lie_at_multiples_of_their_element_size(
    dtype: str, label: LabelHeader, width: int, n_rows: list[int]
) -> None:
    made = make_run(n_rows, {"hidden_states": StreamHeader((0,), width, dtype)}, label, n_shards=1)
    (shard,) = made.shards
    labels = None if label.dtype is None else torch.zeros(sum(n_rows), dtype=label.dtype)
    for pack in packs_of(shard, made.header):
        stored = encode(
            shard.values["hidden_states"][0][pack.rows], made.header.streams["hidden_states"].torch_dtype
        )
        tensors = pack_tensors(pack_columns(pack, shard.index, labels), stored)
        header = safetensors_header(tensors)
        assert len(header) % 8 == 0
        read = safetensors.torch.load(header + b"".join(tensor.data for tensor in tensors.values()))
        expected = {} if labels is None else {"label": labels[pack.rows]}
        for name in ("prompt", "position", "token_id"):
            expected[name] = getattr(shard.index, name)[pack.rows]
        if stored.scale is not None:
            expected["scale"] = stored.scale
        expected["rows"] = stored.rows
        assert list(tensors) == list(expected)
        assert {name: tensor.dtype for name, tensor in read.items()} == {
            name: tensor.dtype for name, tensor in expected.items()
        }
        assert all(torch.equal(read[name].float(), expected[name].float()) for name in expected)
        start = len(header)
        for tensor in expected.values():
            assert start % tensor.element_size() == 0
            start += tensor.nbytes


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 400))
def test_packs_are_whole_prompts_in_order_and_near_their_size(n_rows: list[int], pack_bytes: int) -> None:
    made = make_run(n_rows, n_shards=1, pack_bytes=pack_bytes)
    packs = packs_of(made.shards[0], made.header)
    assert [p for pack in packs for p in range(*pack.prompts)] == list(range(len(n_rows)))
    assert [pack.n_rows for pack in packs] == [sum(n_rows[slice(*pack.prompts)]) for pack in packs]
    assert all(after.first_row == before.first_row + before.n_rows for before, after in pairwise(packs))
    row_bytes = made.header.streams["hidden_states"].row_bytes
    assert all(pack.n_rows * row_bytes <= pack_bytes + max(n_rows) * row_bytes for pack in packs)


def test_memory_of_a_contiguous_tensor_is_written_where_it_lies() -> None:
    tensor = torch.arange(12, dtype=torch.float32).view(3, 4)
    view = TensorBytes.of(tensor[1:]).data
    tensor[1] = 7
    assert bytes(view) == tensor[1:].numpy().tobytes()


@pytest.mark.parametrize("n", [0, 1, 3])
def test_rows_that_are_not_contiguous_are_written_in_their_order(n: int) -> None:
    tensor = torch.arange(20, dtype=torch.float32).view(5, 4)[:, 1 : n + 1].T
    assert bytes(TensorBytes.of(tensor).data) == tensor.numpy().tobytes()
    assert bytes(TensorBytes.of(tensor[:, 0]).data) == tensor[:, 0].numpy().tobytes()


def test_a_tar_holds_each_pack_as_two_members_that_stock_readers_read(tmp_path: Path) -> None:
    streams = {
        "hidden_states": StreamHeader((2, 7), 6, "bfloat16"),
        "attention_heads": StreamHeader((7,), 4, "float32", {"num_heads": 2, "head_size": 2}),
    }
    made = make_run(streams=streams)
    write_run(tmp_path, made)
    keys = set()
    for stream, shape in streams.items():
        for layer_id in shape.layer_ids:
            rows, columns, names = [], {"prompt": [], "position": [], "token_id": []}, []
            for path in sorted((tmp_path / stream / f"layer-{layer_id:03d}").glob("*.tar")):
                with tarfile.open(path) as archive:
                    members = {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]
                names += list(members)
                for name, data in members.items():
                    if name.endswith(".safetensors"):
                        tensors = safetensors.torch.load(data)
                        rows.append(tensors["rows"])
                        for column, parts in columns.items():
                            parts.append(tensors[column])
                    else:
                        about = json.loads(data)
                        assert (about["stream"], about["layer_id"]) == (stream, layer_id)
                        assert (about["width"], about["dtype"]) == (shape.width, shape.dtype)
                        assert about["layout"] == shape.layout
                        assert about["label_names"] == ["no", "yes"]
                        assert about["n_rows"] == len(rows[-1])
                        if about["n_rows"]:
                            assert about["first_prompt"] <= columns["prompt"][-1].min()
                            assert about["last_prompt"] >= columns["prompt"][-1].max()
            assert same_bits(torch.cat(rows), made.rows[stream][layer_id])
            for column, parts in columns.items():
                assert torch.equal(torch.cat(parts), getattr(made.index, column))
            assert names == sorted(names, key=lambda name: (name.split(".")[0], name.endswith("json")))
            assert all(name.count(".") == 1 for name in names)
            keys.add(tuple(name.split(".")[0] for name in names))
    assert len(keys) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n_rows", [[1] * 1001, [1500], [37] * 120])
def test_a_layer_takes_at_most_five_percent_more_than_its_values(
    tmp_path: Path, dtype: str, n_rows: list[int]
) -> None:
    shape = StreamHeader((0,), 576, dtype)
    made = make_run(n_rows, {"hidden_states": shape}, n_shards=4, pack_bytes=8 * 2**20)
    write_run(tmp_path, made)
    n_bytes = sum(path.stat().st_size for path in (tmp_path / "hidden_states" / "layer-000").iterdir())
    assert n_bytes <= 1.05 * sum(n_rows) * shape.row_bytes
