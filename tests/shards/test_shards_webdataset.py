from __future__ import annotations

import gc
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import webdataset as wds
from webdataset.autodecode import DecodingError

from easysteer_data.errors import BadShardError
from easysteer_data.shards import LabelHeader, StreamHeader, decode_safetensors, open_run, unpack_rows
from tests.shards.made import Made, make_run, same_bits, write_run

ROOT = Path(__file__).parents[2]

# WebDataset leaves the closing of its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(autouse=True)
def files_of_webdataset_are_closed_in_their_own_test() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def made() -> Made:
    return make_run(streams={"hidden_states": StreamHeader((0, 3, 12), 6, "bfloat16")})


@pytest.fixture(scope="module")
def run(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    write_run(path, made)
    return path


def packs(run: Path, layer: str = "layer-012") -> wds.WebDataset:
    tars = sorted(glob(f"{run}/hidden_states/{layer}/*.tar"))  # noqa: PTH207 - as users write it
    return wds.WebDataset(tars, shardshuffle=False).decode(decode_safetensors)


def test_webdataset_reads_every_row_of_a_layer(run: Path, made: Made) -> None:
    samples = list(packs(run))
    assert len(samples) > len(made.shards)
    for column in ("prompt", "position", "token_id"):
        read = torch.cat([sample["safetensors"][column] for sample in samples])
        assert torch.equal(read, getattr(made.index, column))
    rows = torch.cat([sample["safetensors"]["rows"] for sample in samples])
    assert same_bits(rows, made.rows["hidden_states"][12])
    assert torch.equal(torch.cat([s["safetensors"]["label"] for s in samples]), open_run(run).labels)
    assert [sample["json"]["n_rows"] for sample in samples] == [
        len(s["safetensors"]["rows"]) for s in samples
    ]


def test_the_examples_of_the_readme_read_the_same_rows(tmp_path: Path) -> None:
    made = make_run()
    write_run(tmp_path, made)
    text = (ROOT / "easysteer_data" / "shards" / "README.md").read_text()
    seen: dict[str, Any] = {"run": str(tmp_path)}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(example, seen)
    rows = made.rows["hidden_states"]
    assert torch.equal(seen["x"], torch.stack([rows[layer][[0, 5, 3]] for layer in (0, 3, 12)], dim=1))
    assert torch.equal(torch.stack([row["x"] for row in seen["rows"]]), rows[12])
    first = np.concatenate(seen["matrices"])
    np.testing.assert_array_equal(first, rows[12][: len(first)])
    assert len(first) == len(made.shards[0].index)


def test_keys_are_the_same_in_all_layers(run: Path) -> None:
    keys = [[sample["__key__"] for sample in packs(run, layer)] for layer in ("layer-000", "layer-012")]
    assert keys[0] == keys[1] == sorted(set(keys[0]))


def test_unpacked_rows_are_the_rows_in_order(run: Path, made: Made) -> None:
    rows = list(packs(run).compose(unpack_rows))
    assert same_bits(torch.stack([row["x"] for row in rows]), made.rows["hidden_states"][12])
    for column in ("prompt", "position", "token_id"):
        assert torch.equal(torch.stack([row[column] for row in rows]), getattr(made.index, column))
    assert torch.equal(torch.stack([row["label"] for row in rows]), open_run(run).labels)


def test_an_unpacked_row_does_not_keep_its_pack_in_memory(run: Path) -> None:
    row = next(iter(packs(run).compose(unpack_rows)))
    assert row["x"].untyped_storage().nbytes() == row["x"].nbytes


def test_rows_of_a_run_without_labels_have_none(tmp_path: Path) -> None:
    write_run(tmp_path, make_run(label=LabelHeader()))
    assert next(iter(packs(tmp_path).compose(unpack_rows))).keys() == {"x", "prompt", "position", "token_id"}


def test_rows_shuffle_and_batch_in_loader_workers(run: Path, made: Made) -> None:
    rows = packs(run).compose(unpack_rows).shuffle(8).to_tuple("x", "prompt", "position")
    loader = wds.WebLoader(rows, batch_size=4, num_workers=2)
    batches = list(loader)
    assert all(x.dtype == torch.bfloat16 for x, _, _ in batches)
    found = sorted(
        (int(p), int(q), x.tolist()) for xs, ps, qs in batches for x, p, q in zip(xs, ps, qs, strict=True)
    )
    index, values = made.index, made.rows["hidden_states"][12]
    assert found == [
        (int(p), int(q), x.tolist()) for p, q, x in zip(index.prompt, index.position, values, strict=True)
    ]


def test_packs_must_be_decoded_before_they_are_unpacked(run: Path) -> None:
    tars = sorted(glob(f"{run}/hidden_states/layer-012/*.tar"))  # noqa: PTH207
    with pytest.raises(BadShardError, match=r"put \.decode\(decode_safetensors\) before"):
        list(wds.WebDataset(tars, shardshuffle=False).compose(unpack_rows))


def tar_of(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def pickle_that_creates(path: Path) -> bytes:
    """A pickle, by hand, that calls os.mkdir(path) when it is loaded."""
    return b"cos\nmkdir\n(V" + str(path).encode("raw_unicode_escape") + b"\ntR."


def test_the_pickle_of_the_next_tests_does_run_in_webdatasets_own_decoding(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "evil.tar", {"a.pyd": pickle_that_creates(tmp_path / "ran")})
    list(wds.WebDataset([tar], shardshuffle=False).decode())
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize(
    "kind", ["pyd", "pkl", "pickle", "pth", "PKL", "safetensors.pkl", "npy", "npz", "pyd.gz"]
)
def test_a_strangers_pickle_is_never_loaded(tmp_path: Path, kind: str) -> None:
    data = pickle_that_creates(tmp_path / "ran")
    if kind.endswith("gz"):
        data = gzip.compress(data)
    pack = safetensors.torch.save({"rows": torch.zeros(1, 2)})
    tar = tar_of(tmp_path / "evil.tar", {"a.safetensors": pack, f"a.{kind}": data})
    with pytest.raises(DecodingError) as caught:
        list(wds.WebDataset([tar], shardshuffle=False).decode(decode_safetensors))
    assert isinstance(caught.value.__cause__, BadShardError)
    assert "only .safetensors and .json belong there" in str(caught.value.__cause__)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["safetensors", "json"])
def test_a_pickle_under_the_name_of_a_member_of_ours_is_not_loaded(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BadShardError, match=rf"\*\.{kind} can't be read"):
        decode_safetensors(f".{kind}", pickle_that_creates(tmp_path / "ran"))
    assert not (tmp_path / "ran").exists()


def test_members_of_a_pack_are_decoded_and_others_refused() -> None:
    good: dict[str, Any] = {"rows": torch.ones(2, 3, dtype=torch.float16), "prompt": torch.zeros(0)}
    read = decode_safetensors(".safetensors", safetensors.torch.save(good))
    assert isinstance(read, dict)
    assert all(torch.equal(read[name], good[name]) for name in good)
    assert decode_safetensors(".json", json.dumps({"a": [1]}).encode()) == {"a": [1]}
    with pytest.raises(BadShardError):
        decode_safetensors(".txt", b"text")


def test_reading_a_run_imports_neither_vllm_nor_lightning_nor_webdataset(run: Path) -> None:
    program = (
        "import sys; from easysteer_data.shards import open_run; import torch; "
        f"open_run({str(run)!r}).gather('hidden_states', [3], torch.tensor([0])); "
        "print(sorted({'vllm', 'lightning', 'webdataset'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"
