from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.shards.statistics import measure, merge


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
    merged = merge([measure(part) for part in parts])
    x = torch.cat(parts).double().numpy()
    n = max(len(x), 1)
    assert merged.n_rows == len(x)
    np.testing.assert_allclose(merged.mean, x.sum(axis=0) / n, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(merged.mean_square, (x**2).sum(axis=0) / n, rtol=1e-10)
    np.testing.assert_allclose(merged.mean_norm, np.linalg.norm(x, axis=1).sum() / n, rtol=1e-10)
    assert merged.max_abs == abs(x).max(initial=0)


def test_sums_are_float64() -> None:
    rows = torch.full((200_000, 3), 0.1)
    rows[0] = 1e8
    found = measure(rows)
    expected = (1e8 + 199_999 * float(torch.tensor(0.1))) / 200_000
    np.testing.assert_allclose(found.mean, [expected] * 3, rtol=1e-11)


def test_the_number_of_threads_changes_no_bit() -> None:
    rows = torch.randn(3000, 257, generator=torch.Generator().manual_seed(0)).half()
    before = torch.get_num_threads()
    found = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        found.append(measure(rows))
    torch.set_num_threads(before)
    assert torch.equal(found[0].mean, found[1].mean)
    assert torch.equal(found[0].mean_square, found[1].mean_square)
    assert found[0].mean_norm == found[1].mean_norm


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 99_999])
def test_a_value_that_is_not_finite_shows_in_the_largest(value: float, row: int) -> None:
    rows = torch.ones(100_000, 2)
    rows[row, 1] = value
    assert not np.isfinite(measure(rows).max_abs)


def test_a_row_wider_than_a_block_is_measured() -> None:
    rows = torch.ones(3, 100_000)
    assert measure(rows).mean_norm == pytest.approx(100_000**0.5)
