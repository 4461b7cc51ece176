from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from easysteer_data.errors import BadShardError
from easysteer_data.shards.region import FileRegion


def test_files_of_any_size_lie_in_one_tensor_once_they_are_mapped(tmp_path: Path) -> None:
    contents = [os.urandom(size) for size in (1, 4096, 4097, 70_000)]
    region = FileRegion([len(data) for data in contents])
    for place in (3, 0, 2):
        path = tmp_path / str(place)
        path.write_bytes(contents[place])
        region.map_file(place, path)
    found = [
        bytes(region.data[start : start + len(data)].numpy())
        for start, data in zip(region.offsets, contents, strict=True)
    ]
    assert found == [contents[0], bytes(4096), *contents[2:]]


def test_a_view_keeps_the_mapping_alive(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    (tmp_path / "a").write_bytes(data)
    region = FileRegion([len(data)])
    region.map_file(0, tmp_path / "a")
    view = region.data[5_000:10_000]
    del region
    gc.collect()
    assert bytes(view.numpy()) == data[5_000:]


def test_the_addresses_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(2**20))
    for _ in range(3):
        region = FileRegion([2**20, 2**44])  # 16 TiB each: eight of them would not fit
        region.map_file(0, tmp_path / "a")
        assert str(tmp_path / "a") in Path("/proc/self/maps").read_text()
        del region
        gc.collect()
        assert str(tmp_path / "a") not in Path("/proc/self/maps").read_text()


def test_what_the_system_refuses_to_map_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(BadShardError, match="can't be mapped"):
        FileRegion([0, 10]).map_file(0, tmp_path / "empty")


@pytest.mark.parametrize("size", [9, 11])
def test_a_file_of_another_size_is_not_mapped(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(bytes(size))
    with pytest.raises(BadShardError, match=f"{size} bytes, should be 10"):
        FileRegion([10]).map_file(0, tmp_path / "a")
