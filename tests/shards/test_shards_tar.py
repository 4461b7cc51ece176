from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.errors import RunError
from easysteer_data.shards.durable import DurableFile
from easysteer_data.shards.tar import TarWriter, member_header

NAMES = st.from_regex(r"[a-z0-9-]{1,90}\.[a-z]{1,9}", fullmatch=True)


@given(NAMES, st.integers(0, 8 * 2**30 - 1))
def test_a_header_is_the_one_that_tarfile_writes(name: str, n_bytes: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = n_bytes
    expected = info.tobuf(tarfile.USTAR_FORMAT)
    # tarfile leaves the device numbers of regular files empty, too.
    assert member_header(name, n_bytes) == expected


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (511, 512, 513), (0, 10_000, 0)])
def test_an_archive_reads_back_with_tarfile_and_ends_after_two_blocks(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    path = tmp_path / "a.tar"
    members = {f"m{i}.bin": bytes([i + 1]) * size for i, size in enumerate(sizes)}
    with DurableFile(path) as file:
        tar = TarWriter(file)
        offsets = [tar.add(name, [data[:5], memoryview(data[5:])]) for name, data in members.items()]
        tar.finish()
    data = path.read_bytes()
    assert [data[o : o + len(m)] for o, m in zip(offsets, members.values(), strict=True)] == [
        *members.values()
    ]
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        assert {info.name: archive.extractfile(info).read() for info in archive} == members  # type: ignore[union-attr]
        assert all((info.mtime, info.uid, info.gid, info.mode) == (0, 0, 0, 0o644) for info in archive)
    assert len(data) == sum(512 + -(-size // 512) * 512 for size in sizes) + 1024


def test_a_member_over_8_gib_is_refused_with_advice() -> None:
    with pytest.raises(RunError, match=r"a\.bin has 8589934592 bytes.*select fewer"):
        member_header("a.bin", 8 * 2**30)


def test_a_name_over_100_bytes_is_refused() -> None:
    with pytest.raises(RunError, match="over 100 bytes"):
        member_header("\u00e9" * 51, 1)
