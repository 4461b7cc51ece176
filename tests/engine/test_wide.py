"""Rows that are moved in wide elements are the rows that torch moves one value at a time."""

from __future__ import annotations

import pytest
import torch

from easysteer_data.engine.wide import pick_rows, without_gaps

WIDTHS = [1, 2, 3, 4, 7, 8, 12, 64]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_rows_keep_their_bits(dtype: torch.dtype, width: int, first: int) -> None:
    values = torch.randn(3, 20, width, generator=torch.Generator().manual_seed(width)).to(dtype)
    values[1, first + 2, 0] = torch.nan
    view = values[:2, first : first + 9]
    index = torch.tensor([8, 0, 3, 3, 5])
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(pick_rows(view, index).view(bits), view.view(bits)[:, index])
    whole = without_gaps(view)
    assert whole.is_contiguous()
    assert torch.equal(whole.view(bits), view.view(bits))


def test_memory_of_no_even_place_is_taken_as_it_is() -> None:
    odd = torch.arange(41, dtype=torch.bfloat16)[1:].view(2, 5, 4)
    assert torch.equal(pick_rows(odd, torch.tensor([4, 0])), odd[:, [4, 0]])
    assert torch.equal(without_gaps(odd[:, :3]), odd[:, :3])


def test_no_rows_and_rows_without_values() -> None:
    rows = torch.ones(2, 4, 8, dtype=torch.bfloat16)
    assert pick_rows(rows, torch.empty(0, dtype=torch.int64)).shape == (2, 0, 8)
    assert pick_rows(rows[:, :, :0], torch.tensor([1, 2])).shape == (2, 2, 0)
    assert without_gaps(rows[:, :0]).shape == (2, 0, 8)


def test_rows_whose_values_lie_apart_are_taken_as_they_are() -> None:
    apart = torch.arange(96, dtype=torch.bfloat16).view(2, 3, 16)[:, :, ::2]
    assert torch.equal(pick_rows(apart, torch.tensor([2, 0])), apart[:, [2, 0]])
    assert torch.equal(without_gaps(apart), apart)
