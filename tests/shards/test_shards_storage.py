from __future__ import annotations

import dataclasses
import gc
import json
import tarfile
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.errors import ProofError, RunError
from easysteer_data.shards import (
    LabelHeader,
    RunWriter,
    StorageError,
    StreamHeader,
    decode_safetensors,
    dequantise_packs,
    open_run,
    unpack_rows,
)
from easysteer_data.shards.storage import StorageMeter, StoredRows, decode, encode
from tests.shards.made import Made, files_of, make_run, same_bits, write_run

Singles = npt.NDArray[np.float32]

LAYER = "hidden_states/layer-003"


@pytest.fixture(autouse=True)
def files_of_webdataset_are_closed_in_their_own_test() -> Iterator[None]:
    yield
    gc.collect()


def captured_as(made: Made, dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor]) -> Made:
    """The same run with other rows: `change`d, then of a capture's dtype."""

    rows = {
        stream: {k: change(layer).to(dtype) for k, layer in layers.items()}
        for stream, layers in made.rows.items()
    }
    shards, start = [], 0
    for shard in made.shards:
        own = slice(start, start + len(shard.index))
        values = {stream: {k: layer[own] for k, layer in layers.items()} for stream, layers in rows.items()}
        shards.append(dataclasses.replace(shard, values=values))
        start = own.stop
    return dataclasses.replace(made, shards=tuple(shards), rows=rows)


def run_of(storage: str, captured: torch.dtype = torch.float32, width: int = 6) -> Made:
    """Rows with a large first element and, in the second row, zeros only, captured in one dtype."""
    made = make_run(streams={"hidden_states": StreamHeader((0, 3), width, storage)})

    def uneven(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.float() * torch.linspace(30, 0.01, width)
        rows[1:2] = 0
        return rows

    return captured_as(made, captured, uneven)


def bfloat16_of(x: Singles) -> Singles:
    """Rounded to bfloat16, to the nearest and ties to even, by arithmetic on the bits."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def float8_of(x: Singles) -> Singles:
    """Rounded to e4m3: 3 bits of fraction, exponents from -6, ties to even."""
    exponent = np.floor(np.log2(np.abs(x), where=x != 0, out=np.full_like(x, -6.0)))
    step = 2.0 ** (np.maximum(exponent, -6) - 3)
    return (np.rint(x / step) * step).astype(np.float32)


def scaled(x: Singles, peak: float, rounded: Callable[[Singles], Singles]) -> Singles:
    scale = (np.abs(x).max(axis=1, keepdims=True) / np.float32(peak)).astype(np.float32)
    scale[scale == 0] = 1
    return rounded(x / scale) * scale


ORACLES: dict[str, Callable[[Singles], Singles]] = {
    "float32": lambda x: x,
    "bfloat16": bfloat16_of,
    "float16": lambda x: x.astype(np.float16).astype(np.float32),
    "float8_e4m3": lambda x: scaled(x, 448, float8_of),
    "int8": lambda x: scaled(x, 127, np.rint),
}


@pytest.mark.parametrize("captured", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("storage", ORACLES)
def test_rows_of_each_capture_type_read_back_as_each_storage_type_rounds_them(
    tmp_path: Path, storage: str, captured: torch.dtype
) -> None:
    made = run_of(storage, captured)
    write_run(tmp_path, made)
    run = open_run(tmp_path)
    assert run.gather("hidden_states", [0], torch.tensor([0])).dtype == {
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
    }.get(storage, torch.float32)
    rows = torch.tensor([16, 0, 1, 1, 9])
    found = run.gather("hidden_states", [3, 0], rows).float()
    assert found.shape == (5, 2, 6)
    for place, layer_id in enumerate((3, 0)):
        expected = ORACLES[storage](made.rows["hidden_states"][layer_id].float().numpy())
        np.testing.assert_array_equal(found[:, place], expected[rows])


@pytest.mark.parametrize("captured", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("storage", ORACLES)
def test_the_recorded_error_is_that_of_the_rows_in_float64(
    tmp_path: Path, storage: str, captured: torch.dtype
) -> None:
    made = run_of(storage, captured)
    write_run(tmp_path, made)
    x = made.rows["hidden_states"][3].double().numpy()
    s = ORACLES[storage](x.astype(np.float32)).astype(np.float64)
    found = open_run(tmp_path).storage_error("hidden_states", 3)
    nonzero = np.abs(x).max(axis=1) > 0
    cosine = np.ones(len(x))
    cosine[nonzero] = (x * s).sum(axis=1)[nonzero] / (
        np.linalg.norm(x, axis=1)[nonzero] * np.linalg.norm(s, axis=1)[nonzero]
    )
    assert found.n_rows == 17
    np.testing.assert_allclose(found.sum_square, (x**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(found.relative_error, np.linalg.norm(x - s) / np.linalg.norm(x), rtol=1e-9)
    np.testing.assert_allclose(found.mean_cosine, cosine.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.min_cosine, cosine.min(), rtol=1e-12)
    assert (x == s).all() == (found.relative_error == 0)
    assert (x == s).all() == (found.mean_cosine == found.min_cosine == 1)
    if storage == "float32" or (storage, captured) == ("bfloat16", torch.bfloat16):
        assert found.relative_error == 0


@pytest.mark.parametrize("storage", ["float8_e4m3", "int8"])
def test_the_error_of_many_shards_is_that_of_one(tmp_path: Path, storage: str) -> None:
    found = []
    for n_shards in (1, 5):
        made = make_run(
            [3, 2, 5, 1, 4, 2], {"hidden_states": StreamHeader((3,), 6, storage)}, n_shards=n_shards
        )
        write_run(tmp_path / str(n_shards), made)
        found.append(open_run(tmp_path / str(n_shards)).storage_error("hidden_states", 3))
    np.testing.assert_allclose(dataclasses.astuple(found[0]), dataclasses.astuple(found[1]), rtol=1e-12)


def test_statistics_are_those_of_the_rows_as_captured_not_as_stored(tmp_path: Path) -> None:
    for storage in ("int8", "float32"):
        write_run(tmp_path / storage, run_of(storage))
    coarse, exact = (open_run(tmp_path / s).statistics("hidden_states", 3) for s in ("int8", "float32"))
    assert torch.equal(coarse.mean, exact.mean)
    assert torch.equal(coarse.mean_square, exact.mean_square)
    assert (coarse.mean_norm, coarse.max_abs) == (exact.mean_norm, exact.max_abs)


@pytest.mark.parametrize(
    ("storage", "dtype", "peak"), [("float8_e4m3", torch.float8_e4m3fn, 448.0), ("int8", torch.int8, 127.0)]
)
def test_a_tar_holds_scaled_rows_as_stock_readers_read_them(
    tmp_path: Path, storage: str, dtype: torch.dtype, peak: float
) -> None:
    made = run_of(storage)
    write_run(tmp_path, made)
    parts, about = [], []
    for path in sorted((tmp_path / LAYER).glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                data = archive.extractfile(info).read()  # type: ignore[union-attr]
                (about if info.name.endswith("json") else parts).append(data)
    packs = [safetensors.torch.load(data) for data in parts]
    rows, scale = (torch.cat([pack[name] for pack in packs]) for name in ("rows", "scale"))
    assert (rows.dtype, scale.dtype, scale.shape) == (dtype, torch.float32, (17,))
    x = made.rows["hidden_states"][3]
    np.testing.assert_array_equal(scale[x.abs().amax(dim=1) == 0], 1)
    assert rows.float().abs().amax(dim=1).unique().tolist() == [0, peak]
    np.testing.assert_array_equal(rows.float() * scale[:, None], ORACLES[storage](x.numpy()))
    assert {json.loads(data)["dtype"] for data in about} == {storage}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("storage", ["float8_e4m3", "int8", "float16"])
def test_webdataset_alone_reads_scaled_rows_as_floats(tmp_path: Path, storage: str) -> None:
    made = run_of(storage)
    write_run(tmp_path, made)
    expected = open_run(tmp_path).gather("hidden_states", [3], torch.arange(17))[:, 0]
    tars = sorted(glob(f"{tmp_path}/{LAYER}/*.tar"))  # noqa: PTH207 - as users write it
    packs = wds.WebDataset(tars, shardshuffle=False).decode(decode_safetensors)
    rows = list(packs.compose(unpack_rows))
    assert rows[0].keys() == {"x", "prompt", "position", "token_id", "label"}
    assert same_bits(torch.stack([row["x"] for row in rows]), expected)
    assert torch.equal(torch.stack([row["prompt"] for row in rows]), made.index.prompt)
    whole = [sample["safetensors"] for sample in packs.compose(dequantise_packs)]
    assert same_bits(torch.cat([pack["rows"] for pack in whole]), expected)
    assert all(pack.keys() == {"rows", "prompt", "position", "token_id", "label"} for pack in whole)


def test_every_float8_number_is_decoded_as_torch_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = codes[codes.float().isfinite()]
    assert len(numbers) == 254
    for scale in (1.0, 2.0**-120, 0.1, 3e35):
        found = decode(StoredRows(numbers[:, None], torch.full((254,), scale)))
        assert same_bits(found[:, 0], numbers.float() * scale)


@settings(deadline=None)
@given(
    st.sampled_from([torch.float8_e4m3fn, torch.int8]),
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False, width=32, allow_subnormal=False),
        min_size=1,
        max_size=5,
    ),
)
def test_no_finite_row_is_stored_as_anything_but_its_rounding(
    dtype: torch.dtype, values: list[float]
) -> None:
    x = torch.tensor([values])
    stored = encode(x, dtype)
    assert stored.scale is not None
    found = decode(stored)
    assert found.isfinite().all()
    # Half a step of int8 or of float8's largest numbers; the smallest scale is the smallest normal number.
    half_step = stored.scale * {torch.int8: 0.5, torch.float8_e4m3fn: 16.0}[dtype]
    assert (found.double() - x.double()).abs().max() <= 1.0001 * half_step.double()


def test_rows_wider_than_a_block_and_many_blocks_are_encoded_alike() -> None:
    x = torch.randn(7, 70_000, generator=torch.Generator().manual_seed(0))
    for shape in ((7, 70_000), (4900, 100)):
        meter = StorageMeter()
        stored = encode(x.view(shape), torch.int8, meter)
        np.testing.assert_array_equal(decode(stored), ORACLES["int8"](x.view(shape).numpy()))
        s = decode(stored).double()
        expected = (x.view(shape).double() - s).norm() / x.double().norm()
        np.testing.assert_allclose(meter.error().relative_error, expected, rtol=1e-10)


def test_rows_of_the_storage_type_are_not_copied() -> None:
    rows = torch.randn(5, 4)
    assert encode(rows, torch.float32).rows is rows


def test_a_row_that_vanishes_in_storage_has_cosine_0() -> None:
    meter = StorageMeter()
    encode(torch.tensor([[1e-9, 0.0], [1.0, 1.0]]), torch.float16, meter)
    found = meter.error()
    assert (found.min_cosine, found.mean_cosine) == (0, pytest.approx(0.5))


def test_no_rows_have_no_error() -> None:
    assert StorageMeter().error() == StorageError(0, 0.0, 0.0, 1.0, 1.0)
    some = StorageError(2, 3.0, 0.5, 0.9, 0.8)
    assert some.merged(StorageMeter().error()).min_cosine == 0.8
    assert StorageMeter().error().merged(StorageMeter().error()) == StorageError(0, 0.0)


@pytest.mark.parametrize(
    ("storage", "value", "message"),
    [
        ("float16", 65520.0, "overflows float16, which holds values up to 65504; store bfloat16 or float32"),
        ("float16", -1e30, "overflows float16"),
        ("bfloat16", 3.4e38, "overflows bfloat16, which .*; store float32"),
    ],
)
def test_a_row_that_overflows_in_storage_is_refused_before_anything_is_written(
    tmp_path: Path, storage: str, value: float, message: str
) -> None:
    made = captured_as(run_of(storage), torch.float32, torch.Tensor.float)
    made.shards[0].values["hidden_states"][3][2, 4] = value
    with RunWriter.open(tmp_path, made.header) as writer:
        before = files_of(tmp_path)
        with pytest.raises(
            ProofError, match=rf"hidden_states layer 3, prompt 0 \(corpus\.jsonl:1\), position 6: .*{message}"
        ):
            writer.write(made.shards[0])
        assert files_of(tmp_path) == before


@pytest.mark.parametrize("value", [65519.0, -65504.0])
def test_the_largest_rows_that_round_into_float16_are_stored(tmp_path: Path, value: float) -> None:
    made = captured_as(run_of("float16"), torch.float32, torch.Tensor.float)
    made.shards[0].values["hidden_states"][3][2, 4] = value
    write_run(tmp_path, made)
    assert open_run(tmp_path).gather("hidden_states", [3], torch.tensor([2]))[0, 0, 4].abs() == 65504


@pytest.mark.parametrize("label", [LabelHeader(), LabelHeader("numeric")])
def test_scaled_rows_need_no_classes(tmp_path: Path, label: LabelHeader) -> None:
    made = make_run(streams={"hidden_states": StreamHeader((3,), 5, "int8")}, label=label)
    write_run(tmp_path, made)
    found = open_run(tmp_path).gather("hidden_states", [3], torch.arange(17))[:, 0]
    np.testing.assert_array_equal(found, ORACLES["int8"](made.rows["hidden_states"][3].numpy()))


def test_a_run_without_rows_keeps_the_same_statistics_and_prompts(tmp_path: Path) -> None:
    made = make_run()
    write_run(tmp_path / "rows", made)
    bare = dataclasses.replace(made, header=dataclasses.replace(made.header, rows=False))
    write_run(tmp_path / "bare", bare)
    assert files_of(tmp_path / "bare").keys() == {
        "run.json",
        "manifest.json",
        "journal.jsonl",
        "statistics.safetensors",
        *(f"statistics/shard-{number:06d}.safetensors" for number in range(3)),
        *(f"prompts/shard-{number:06d}.parquet" for number in range(3)),
    }
    assert not (tmp_path / "bare" / "index").exists()
    run, full = open_run(tmp_path / "bare"), open_run(tmp_path / "rows")
    assert run.prompts().equals(full.prompts())
    assert run.row_splits().tolist() == full.row_splits().tolist()
    assert run.layers == (0, 3, 12)
    for split in (None, "train"):
        found, expected = (each.statistics("hidden_states", 12, split) for each in (run, full))
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.mean_square, expected.mean_square)
        assert found.by_label is not None
        assert expected.by_label is not None
        assert torch.equal(found.by_label.mean, expected.by_label.mean)
    assert repr(run).startswith(f"Run({str(run.path)!r}, 17 rows (statistics only) of 8 prompts in 3 shards;")


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run.gather("hidden_states", [3], torch.tensor([0])),
        lambda run: run.index,
        lambda run: run.labels,
        lambda run: run.storage_error("hidden_states", 3),
    ],
)
def test_rows_of_a_run_without_rows_are_refused_as_such(
    tmp_path: Path, ask: Callable[[object], object]
) -> None:
    write_run(tmp_path, make_run(rows=False))
    run = open_run(tmp_path)
    with pytest.raises(RunError, match=r"keeps statistics only .*rows=false.*, no rows; capture again"):
        ask(run)
    with pytest.raises(RunError, match="holds no router_logits, only hidden_states"):
        run.gather("router_logits", [3], torch.tensor([0]))


def test_a_run_without_rows_takes_values_that_its_dtype_could_not_hold(tmp_path: Path) -> None:
    made = captured_as(
        make_run(rows=False, streams={"hidden_states": StreamHeader((3,), 6, "float16")}),
        torch.float32,
        lambda rows: rows.float() * 1e6,
    )
    write_run(tmp_path, made)
    assert open_run(tmp_path).statistics("hidden_states", 3).max_abs > 65504


def test_rows_can_not_be_left_out_of_a_run_that_was_begun_with_them(tmp_path: Path) -> None:
    write_run(tmp_path, make_run())
    with pytest.raises(RunError, match="rows: true -> false") as caught:
        RunWriter.open(tmp_path, make_run(rows=False, provenance={"seed": 3}).header)
    assert "seed" not in str(caught.value)


def test_provenance_is_kept_but_not_compared_and_what_was_measured_is_in_the_manifest(tmp_path: Path) -> None:
    made = make_run(provenance={"host": {"cpus": 2}})
    with RunWriter.open(tmp_path, made.header) as writer:
        writer.write(made.shards[0])
    with RunWriter.open(tmp_path, make_run(provenance={"host": {"cpus": 8}}).header) as writer:
        for shard in made.shards[1:]:
            writer.write(shard)
        writer.close(measured={"wall_s": 1.5, "tokens": {"prompt": 25}})
    manifest = open_run(tmp_path).manifest
    assert manifest.measured == {"wall_s": 1.5, "tokens": {"prompt": 25}}
    assert manifest.header.provenance == {"host": {"cpus": 2}}
    assert json.loads((tmp_path / "run.json").read_bytes())["provenance"] == {"host": {"cpus": 2}}
    assert json.loads((tmp_path / "manifest.json").read_bytes())["measured"] == manifest.measured


def test_what_was_measured_must_be_plain_json(tmp_path: Path) -> None:
    made = make_run()
    with RunWriter.open(tmp_path, made.header) as writer:
        for shard in made.shards:
            writer.write(shard)
        with pytest.raises(RunError, match="plain, finite JSON"):
            writer.close(measured={"rate": float("nan")})
        assert not (tmp_path / "manifest.json").exists()
