from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.errors import SettingsError
from easysteer_data.shards import plan_shards

CORPORA = st.lists(st.integers(0, 50), min_size=1, max_size=60)


@given(CORPORA, st.integers(1, 64), st.integers(1, 5000), st.integers(1, 70))
def test_shards_are_consecutive_and_cover_every_prompt_once(
    n_rows: list[int], row_bytes: int, shard_bytes: int, min_shards: int
) -> None:
    plan = plan_shards(n_rows, row_bytes, shard_bytes=shard_bytes, min_shards=min_shards)
    assert [prompt for start, stop in plan for prompt in range(start, stop)] == list(range(len(n_rows)))
    assert all(before[1] == after[0] for before, after in pairwise(plan))
    assert all(start < stop for start, stop in plan)


@given(CORPORA, st.integers(1, 64), st.integers(1, 5000), st.integers(1, 70))
def test_a_shard_exceeds_its_size_by_less_than_one_prompt(
    n_rows: list[int], row_bytes: int, shard_bytes: int, min_shards: int
) -> None:
    plan = plan_shards(n_rows, row_bytes, shard_bytes=shard_bytes, min_shards=min_shards)
    largest = max(n_rows) * row_bytes
    for start, stop in plan:
        assert sum(n_rows[start:stop]) * row_bytes <= shard_bytes + largest


@given(CORPORA, st.integers(1, 5000), st.integers(1, 70))
def test_there_are_as_many_shards_as_asked_for_while_there_are_prompts(
    n_rows: list[int], shard_bytes: int, min_shards: int
) -> None:
    plan = plan_shards(n_rows, 4, shard_bytes=shard_bytes, min_shards=min_shards)
    fewest = max(min_shards, -(-sum(n_rows) * 4 // shard_bytes), 1)
    assert len(plan) == min(fewest, len(n_rows))


def test_equal_prompts_make_equal_shards() -> None:
    assert plan_shards([10] * 12, 8, shard_bytes=320, min_shards=1) == ((0, 4), (4, 8), (8, 12))


def test_a_prompt_larger_than_a_shard_stays_whole() -> None:
    assert plan_shards([1, 1000, 1], 4, shard_bytes=40, min_shards=1) == ((0, 1), (1, 2), (2, 3))


def test_a_corpus_without_rows_is_cut_by_prompts() -> None:
    assert plan_shards([0, 0, 0, 0], 4, shard_bytes=40, min_shards=2) == ((0, 2), (2, 4))


def test_sizes_of_petabytes_are_exact() -> None:
    n_rows = [2**40] * 4
    assert plan_shards(n_rows, 2**14, shard_bytes=2**55, min_shards=1) == ((0, 2), (2, 4))


@pytest.mark.parametrize(
    ("n_rows", "row_bytes", "shard_bytes", "min_shards", "message"),
    [
        ([], 4, 4, 1, "no prompt"),
        ([1], 0, 4, 1, "positive"),
        ([1], 4, 0, 1, "positive"),
        ([1], 4, 4, 0, "min_shards"),
        ([3, -1], 4, 4, 1, "prompt 1 has a negative"),
    ],
)
def test_impossible_plans_are_refused(
    n_rows: list[int], row_bytes: int, shard_bytes: int, min_shards: int, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_shards(n_rows, row_bytes, shard_bytes=shard_bytes, min_shards=min_shards)
