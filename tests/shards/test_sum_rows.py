"""Sums of rows against numpy in float64, in every capture type."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from easysteer_data import compiled
from easysteer_data.shards.sum_rows import sum_rows

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 7, 64, 333])
def test_sums_are_those_of_numpy_in_float64(dtype: torch.dtype, width: int) -> None:
    rows = (torch.randn(50, width, generator=torch.Generator().manual_seed(width)) * 9).to(dtype)
    places = torch.tensor([3, 4, 10, 49])
    sums, expected = sum_rows(rows, places), rows[places].double().numpy()
    np.testing.assert_array_equal(sums.total, expected.sum(0))
    np.testing.assert_allclose(sums.total_square, np.square(expected).sum(0), rtol=1e-14)
    assert sums.total_norm == pytest.approx(np.linalg.norm(expected, axis=1).sum(), rel=1e-14)
    assert sums.max_abs == np.abs(expected).max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_finite_value_of_16_bits_is_read_exactly(dtype: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)
    finite = every[every.isfinite()]
    sums = sum_rows(finite[None].contiguous(), torch.tensor([0]))
    np.testing.assert_array_equal(sums.total, finite.double().numpy())
    assert sums.max_abs == torch.finfo(dtype).max


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_stays_what_it_is(dtype: torch.dtype, value: float) -> None:
    rows = torch.ones(2, 40, dtype=dtype)
    rows[1, 17] = value
    sums = sum_rows(rows, torch.tensor([0, 1]))
    np.testing.assert_equal(sums.max_abs, abs(value))
    np.testing.assert_equal(sums.total[17], value)
    assert sums.total[16] == 2.0
    rows[0, 3] = math.inf
    rows[1, 17] = math.nan
    np.testing.assert_equal(sum_rows(rows, torch.tensor([0, 1])).max_abs, math.nan)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_lie_apart_and_no_rows_at_all_can_be_summed(dtype: torch.dtype) -> None:
    wide = torch.randn(6, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    apart = wide[::2, 3:11]
    np.testing.assert_array_equal(sum_rows(apart, torch.arange(3)).total, apart.double().numpy().sum(0))
    none = sum_rows(wide, torch.empty(0, dtype=torch.int64))
    assert (none.total_norm, none.max_abs, none.total.any()) == (0.0, 0.0, False)


def test_rows_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="int8"):
        sum_rows(torch.ones(1, 4, dtype=torch.int8), torch.tensor([0]))


def test_without_a_folder_for_compiled_loops_they_are_compiled_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_folder(*, cache: bool = False, **options: Any) -> Callable[[Any], Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)  # type: ignore[no-any-return]

    monkeypatch.setattr(compiled, "njit", without_folder)
    assert compiled.compiled(lambda value: 2 * value)(2.0) == 4.0


def test_modules_can_be_searched_once_the_loops_are_there() -> None:
    """As vLLM does before it starts an engine: what modules hold has a dict of attributes, if any."""
    assert compiled.compiled is not None
    modules = [module for name, module in sys.modules.items() if name.startswith("llvmlite")]
    held = [value for module in modules for value in vars(module).values() if hasattr(value, "__dict__")]
    assert held
    assert all(isinstance(vars(value), Mapping) for value in held)
