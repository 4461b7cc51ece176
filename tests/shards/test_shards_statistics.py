from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.shards import LabelHeader, RowStatistics, open_run
from easysteer_data.shards import measure as measuring
from easysteer_data.shards.labels import MAX_CLASS_MEANS, NO_CLASS
from easysteer_data.shards.measure import RowGroup, group_rows, parts_of, statistics_of, sum_part
from easysteer_data.shards.statistics import merge
from easysteer_data.types import SPLITS, CapturedShard
from tests.shards.made import Made, make_run, write_run

Floats = npt.NDArray[np.float64]


def measure(rows: torch.Tensor, groups: Sequence[RowGroup], n_classes: int) -> tuple[RowStatistics, ...]:
    return statistics_of([sum_part(rows, groups, n_classes, part) for part in parts_of(*rows.shape)])


def measured(rows: torch.Tensor) -> RowStatistics:
    """Statistics of rows that are all of the train split and have no label."""
    train, *others = measure(rows, [RowGroup(0, NO_CLASS, torch.arange(len(rows)))], 0)
    assert [other.n_rows for other in others] == [0, 0]
    return train


def check_against_numpy(found: RowStatistics, x: Floats) -> None:
    n = max(len(x), 1)
    assert found.n_rows == len(x)
    np.testing.assert_allclose(found.mean, x.sum(axis=0) / n, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.mean_square, (x**2).sum(axis=0) / n, rtol=1e-10)
    np.testing.assert_allclose(found.mean_norm, np.linalg.norm(x, axis=1).sum() / n, rtol=1e-10)
    np.testing.assert_allclose(found.sum_square, (x**2).sum(), rtol=1e-10)
    assert found.max_abs == abs(x).max(initial=0)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 2**32),
)
def test_merged_statistics_are_those_of_all_rows(
    sizes: list[int], width: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [(torch.randn(n, width, generator=generator) * 100).to(dtype) for n in sizes]
    merged = merge([measured(part) for part in parts])
    check_against_numpy(merged, torch.cat(parts).double().numpy())
    assert merged.by_label is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=25), st.integers(1, 6))
def test_each_split_and_each_class_has_its_own_statistics(n_rows: list[int], n_shards: int) -> None:
    made = make_run(n_rows, n_shards=n_shards)
    splits, labels, x = kinds_of(made)
    shards = [shard_statistics(shard, made) for shard in made.shards]
    for place, split in enumerate(SPLITS):
        found = merge(shard[place] for shard in shards)
        check_against_numpy(found, x[splits == split])
        assert found.by_label is not None
        for label, name in enumerate(made.header.label.names):
            own = x[(splits == split) & (labels == name)]
            assert found.by_label.n_rows[label] == len(own)
            np.testing.assert_allclose(
                found.by_label.mean[label], own.sum(axis=0) / max(len(own), 1), rtol=1e-10, atol=1e-12
            )


def kinds_of(made: Made) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.str_], Floats]:
    """Split and label of each row, and the rows of layer 3."""
    n_rows = [captured.n_rows for captured in made.prompts]
    splits = np.repeat([captured.prompt.split for captured in made.prompts], n_rows)
    labels = np.repeat([str(captured.prompt.label) for captured in made.prompts], n_rows)
    return splits, labels, made.rows["hidden_states"][3].double().numpy()


def shard_statistics(shard: CapturedShard, made: Made) -> Sequence[RowStatistics]:
    groups = group_rows(shard.prompts, made.header.label)
    return measure(shard.values["hidden_states"][3], groups, made.header.label.n_class_means)


def test_parts_that_are_summed_apart_make_the_statistics_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_run([3, 0, 2, 5, 1, 1, 4, 2, 6, 3], n_shards=1)
    (shard,) = made.shards
    whole = shard_statistics(shard, made)
    n_rows, width = shard.values["hidden_states"][3].shape
    monkeypatch.setattr(measuring, "_PART_VALUES", 4 * width)
    assert [len(part) for part in parts_of(n_rows, width)] == [4] * 6 + [3]
    apart = shard_statistics(shard, made)
    for found, expected in zip(apart, whole, strict=True):
        assert found.n_rows == expected.n_rows > 0
        assert found.max_abs == expected.max_abs
        assert found.by_label is not None
        assert expected.by_label is not None
        assert torch.equal(found.by_label.n_rows, expected.by_label.n_rows)
        for one, other in (
            (found.mean, expected.mean),
            (found.mean_square, expected.mean_square),
            (torch.tensor(found.mean_norm), torch.tensor(expected.mean_norm)),
            (found.by_label.mean, expected.by_label.mean),
        ):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_runs_statistics_are_those_of_numpy_whatever_its_shards(tmp_path: Path) -> None:
    n_rows = [3, 0, 2, 5, 1, 4, 0, 2, 7, 1, 1, 6]
    for n_shards in (1, 4):
        made = make_run(n_rows, n_shards=n_shards)
        write_run(tmp_path / str(n_shards), made)
        run = open_run(tmp_path / str(n_shards))
        splits, labels, x = kinds_of(made)
        check_against_numpy(run.statistics("hidden_states", 3), x)
        for split in SPLITS:
            check_against_numpy(run.statistics("hidden_states", 3, split), x[splits == split])
        train = run.statistics("hidden_states", 3, "train").by_label
        both = run.statistics("hidden_states", 3).by_label
        assert train is not None
        assert both is not None
        own = [x[(splits == "train") & (labels == name)] for name in ("no", "yes")]
        assert train.n_rows.tolist() == [len(rows) for rows in own]
        np.testing.assert_allclose(
            train.mean[1] - train.mean[0], own[1].mean(axis=0) - own[0].mean(axis=0), rtol=1e-10
        )
        np.testing.assert_allclose(both.mean[1], x[labels == "yes"].mean(axis=0), rtol=1e-10)


def test_the_statistics_file_holds_the_documented_tensors(tmp_path: Path) -> None:
    made = make_run()
    write_run(tmp_path, made)
    splits, labels, x = kinds_of(made)
    prefix = "hidden_states/layer-003/"
    for name in ("statistics.safetensors", "statistics/shard-000000.safetensors"):
        tensors = safetensors.torch.load((tmp_path / name).read_bytes())
        own = {
            key.removeprefix(prefix): list(t.shape) for key, t in tensors.items() if key.startswith(prefix)
        }
        assert own == {
            "count": [3],
            "mean": [3, 6],
            "mean_square": [3, 6],
            "mean_norm": [3],
            "max_abs": [3],
            "by_label/count": [3, 2],
            "by_label/mean": [3, 2, 6],
            "storage_error/count": [],
            "storage_error/sum_square": [],
            "storage_error/relative_error": [],
            "storage_error/mean_cosine": [],
            "storage_error/min_cosine": [],
        }
    merged = safetensors.torch.load((tmp_path / "statistics.safetensors").read_bytes())
    assert merged[prefix + "count"].tolist() == [int((splits == split).sum()) for split in SPLITS]
    np.testing.assert_allclose(
        merged[prefix + "by_label/mean"][0, 1], x[(splits == "train") & (labels == "yes")].mean(axis=0)
    )


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        (LabelHeader(), False),
        (LabelHeader("numeric"), False),
        (LabelHeader("classes", ("no", "yes", *map(str, range(MAX_CLASS_MEANS - 2)))), True),
        (LabelHeader("classes", ("no", "yes", *map(str, range(MAX_CLASS_MEANS - 1)))), False),
    ],
)
def test_means_per_class_are_kept_for_few_classes_only(
    tmp_path: Path, label: LabelHeader, kept: bool
) -> None:
    made = make_run()
    if label.kind != "classes":
        made = make_run(label=label)
    write_run(tmp_path, dataclasses.replace(made, header=dataclasses.replace(made.header, label=label)))
    found = open_run(tmp_path).statistics("hidden_states", 3, "train")
    assert found.n_rows > 0
    assert (found.by_label is not None) == kept


def test_sums_are_float64() -> None:
    rows = torch.full((200_000, 3), 0.1)
    rows[0] = 1e8
    expected = (1e8 + 199_999 * float(torch.tensor(0.1))) / 200_000
    np.testing.assert_allclose(measured(rows).mean, [expected] * 3, rtol=1e-11)


def test_the_number_of_threads_changes_no_bit() -> None:
    rows = torch.randn(3000, 257, generator=torch.Generator().manual_seed(0)).half()
    before = torch.get_num_threads()
    found = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        found.append(measured(rows))
    torch.set_num_threads(before)
    assert torch.equal(found[0].mean, found[1].mean)
    assert torch.equal(found[0].mean_square, found[1].mean_square)
    assert found[0].mean_norm == found[1].mean_norm


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 99_999])
def test_a_value_that_is_not_finite_shows_in_the_largest(value: float, row: int) -> None:
    rows = torch.ones(100_000, 2)
    rows[row, 1] = value
    found = measured(rows)
    assert not np.isfinite(found.max_abs)
    for parts in ([found, measured(rows[1:2])], [measured(rows[1:2]), found]):
        assert not np.isfinite(merge(parts).max_abs)


def test_a_row_wider_than_a_block_is_measured() -> None:
    rows = torch.ones(3, 100_000)
    assert measured(rows).mean_norm == pytest.approx(100_000**0.5)
