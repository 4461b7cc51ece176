"""Rows of a step are cut into blocks that end with a group of prompts where they can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.engine.outlet import cut_rows


def test_a_block_ends_with_the_last_group_that_fits() -> None:
    prompts = np.repeat([0, 1, 2, 3, 4, 5], 4)
    cuts = list(cut_rows(prompts, 10, np.array([0, 2, 4])))
    assert cuts == [slice(0, 8), slice(8, 16), slice(16, 24)]
    assert list(cut_rows(prompts, 10, 2)) == cuts
    assert list(cut_rows(prompts, 10, None)) == [slice(0, 10), slice(10, 20), slice(20, 24)]


@pytest.mark.parametrize("max_rows", [24, 100])
def test_rows_that_fit_are_one_block_whatever_their_groups(max_rows: int) -> None:
    prompts = np.repeat([0, 1, 2, 3, 4, 5], 4)
    assert list(cut_rows(prompts, max_rows, np.array([0, 1, 2, 3]))) == [slice(0, 24)]


@given(
    counts=st.lists(st.integers(0, 9), max_size=12),
    starts=st.lists(st.integers(1, 12), unique=True).map(sorted),
    max_rows=st.integers(1, 30),
)
def test_every_row_is_in_one_block(counts: list[int], starts: list[int], max_rows: int) -> None:
    prompts = np.repeat(np.arange(len(counts)), counts)
    cuts = list(cut_rows(prompts, max_rows, np.array([0, *starts])))
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(len(prompts)))
    assert all(0 < cut.stop - cut.start <= max_rows for cut in cuts)
    for cut in cuts[:-1]:
        group = [sum(start <= prompt for start in starts) for prompt in prompts[cut.start : cut.stop + 1]]
        # It ends between two groups, or none ended in it and the row that would still fit is of the same.
        assert group[-2] != group[-1] or (len(set(group)) == 1 and cut.stop - cut.start == max_rows)
