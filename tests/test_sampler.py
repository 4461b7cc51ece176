from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from easysteer_data.errors import SettingsError
from easysteer_data.sampler import BatchPlan, BatchSampler

N_ROWS = st.integers(1, 300)
BATCH_SIZE = st.none() | st.integers(1, 70)
N_RANKS = st.integers(1, 9)


def batches_of_all_ranks(plan: BatchPlan, seed: int | None = 0, epoch: int = 0) -> list[list[list[int]]]:
    return [[rows.tolist() for rows in BatchSampler(plan, rank, seed, epoch)] for rank in range(plan.n_ranks)]


def spread_plan(n_rows: int, batch_size: int | None, n_ranks: int) -> BatchPlan:
    assume(n_rows >= n_ranks)
    assume(batch_size != 1 or n_rows % n_ranks == 0)
    return BatchPlan(n_rows, batch_size, n_ranks)


@given(N_ROWS, BATCH_SIZE, N_RANKS, st.none() | st.integers(0, 5), st.integers(0, 3))
def test_spread_gives_each_row_once_in_equally_many_batches_of_near_equal_size(
    n_rows: int, batch_size: int | None, n_ranks: int, seed: int | None, epoch: int
) -> None:
    plan = spread_plan(n_rows, batch_size, n_ranks)
    ranks = batches_of_all_ranks(plan, seed, epoch)

    assert sorted(row for batches in ranks for batch in batches for row in batch) == list(range(n_rows))
    assert {len(batches) for batches in ranks} == {len(plan)}
    assert len(plan) == (1 if batch_size is None else -(-n_rows // (batch_size * n_ranks)))
    for step in zip(*ranks, strict=True):
        sizes = [len(batch) for batch in step]
        assert min(sizes) >= 1
        assert max(sizes) <= (batch_size or n_rows)
        assert max(sizes) - min(sizes) <= 1


@given(N_ROWS, st.integers(1, 70), N_RANKS)
def test_drop_gives_whole_batches_only_and_leaves_out_less_than_a_step(
    n_rows: int, batch_size: int, n_ranks: int
) -> None:
    assume(n_rows >= batch_size * n_ranks)
    ranks = batches_of_all_ranks(BatchPlan(n_rows, batch_size, n_ranks, "drop"))

    rows = [row for batches in ranks for batch in batches for row in batch]
    assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    assert len(set(rows)) == len(rows)
    assert n_rows - batch_size * n_ranks < len(rows) <= n_rows


@given(N_ROWS, BATCH_SIZE, N_RANKS, st.integers(0, 99), st.data())
def test_rows_of_the_first_steps_are_a_prefix_of_one_order_for_any_number_of_ranks(
    n_rows: int, batch_size: int | None, n_ranks: int, seed: int, data: st.DataObject
) -> None:
    plan = spread_plan(n_rows, batch_size, n_ranks)
    step = data.draw(st.integers(0, len(plan)))
    order = BatchSampler(BatchPlan(n_rows, None), seed=seed).order().tolist()

    seen = [row for batches in batches_of_all_ranks(plan, seed) for batch in batches[:step] for row in batch]

    assert sorted(seen) == sorted(order[: plan.start(step)])


@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_the_order_depends_on_seed_and_epoch_only(seed: int, epoch: int) -> None:
    order = BatchSampler(BatchPlan(97, 8), seed=seed, epoch=epoch).order()
    other_batches = BatchSampler(BatchPlan(97, 13, 3), rank=2, seed=seed)
    other_batches.set_epoch(epoch)

    np.testing.assert_array_equal(order, other_batches.order())
    for other_seed, other_epoch in ((seed + 1, epoch), (seed, epoch + 1), (seed + 1, max(epoch - 1, 0))):
        other = BatchSampler(BatchPlan(97, 8), seed=other_seed, epoch=other_epoch).order()
        assert not np.array_equal(order, other)


def test_every_row_is_equally_likely_at_the_first_place() -> None:
    n_epochs, n_rows = 2000, 10
    sampler = BatchSampler(BatchPlan(n_rows, 1), seed=0)
    first = []
    for epoch in range(n_epochs):
        sampler.set_epoch(epoch)
        first.append(sampler.order()[0])

    counts = np.bincount(first, minlength=n_rows)
    chi_squared = ((counts - n_epochs / n_rows) ** 2 / (n_epochs / n_rows)).sum()
    assert chi_squared < 27.9  # 99.9 % quantile of chi-squared with 9 degrees of freedom


def test_without_a_seed_the_rows_keep_their_order() -> None:
    sampler = BatchSampler(BatchPlan(7, 3))
    assert [rows.tolist() for rows in sampler] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(sampler) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 0), "batch_size is 0"),
        ((10, 4, 1, "pad"), "tail is 'pad'; choose one of spread, drop"),
        ((3, 2, 4), "3 rows can't give 4 ranks"),
        ((3, None, 4), "3 rows can't give 4 ranks"),
        ((3, 1, 2), "3 rows can't give 2 ranks"),
        ((0, 2), "0 rows can't give 1 ranks"),
        ((7, 4, 2, "drop"), "tail='drop' leaves no batch: 7 rows are fewer than 2 ranks x batch_size 4"),
    ],
)
def test_a_plan_that_can_not_be_kept_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        BatchPlan(*arguments)
