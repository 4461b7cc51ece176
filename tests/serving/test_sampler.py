from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from easysteer_data.data_options import Tail
from easysteer_data.errors import SettingsError
from easysteer_data.serving.order import EpochOrder
from easysteer_data.serving.sampler import BatchPlan, BatchSampler, Progress

N_ROWS = st.integers(1, 300)
BATCH_SIZE = st.none() | st.integers(1, 70)
N_RANKS = st.integers(1, 9)


def batches_of_all_ranks(plan: BatchPlan, seed: int | None = 0, epoch: int = 0) -> list[list[list[int]]]:
    order = None if seed is None else EpochOrder(plan.n_rows, seed)
    return [
        [rows.tolist() for rows in BatchSampler(plan, rank, order, epoch)] for rank in range(plan.n_ranks)
    ]


def spread_plan(n_rows: int, batch_size: int | None, n_ranks: int) -> BatchPlan:
    assume(n_rows >= n_ranks)
    assume(batch_size != 1 or n_rows % n_ranks == 0)
    return BatchPlan(n_rows, batch_size, n_ranks)


@settings(deadline=None)
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


@settings(deadline=None)
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


@settings(deadline=None)
@given(N_ROWS, BATCH_SIZE, N_RANKS, st.integers(0, 99), st.data())
def test_rows_of_the_first_steps_are_a_prefix_of_one_order_for_any_number_of_ranks(
    n_rows: int, batch_size: int | None, n_ranks: int, seed: int, data: st.DataObject
) -> None:
    plan = spread_plan(n_rows, batch_size, n_ranks)
    step = data.draw(st.integers(0, len(plan)))
    order = EpochOrder(n_rows, seed)(0).tolist()

    seen = [row for batches in batches_of_all_ranks(plan, seed) for batch in batches[:step] for row in batch]

    assert sorted(seen) == sorted(order[: plan.start(step)])


@settings(deadline=None)
@given(N_ROWS, st.integers(1, 70), N_RANKS, st.integers(0, 5))
def test_pad_gives_whole_batches_only_and_each_row_at_least_once(
    n_rows: int, batch_size: int, n_ranks: int, seed: int
) -> None:
    plan = BatchPlan(n_rows, batch_size, n_ranks, "pad")
    ranks = batches_of_all_ranks(plan, seed)

    served = [row for step in zip(*ranks, strict=True) for batch in step for row in batch]
    assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    assert {len(batches) for batches in ranks} == {len(plan)} == {-(-n_rows // (batch_size * n_ranks))}
    order = EpochOrder(n_rows, seed)(0).tolist()
    assert served == (order * (1 + len(served) // n_rows))[: len(served)]


@settings(max_examples=400, deadline=None)
@given(
    N_ROWS,
    st.tuples(st.integers(1, 70), N_RANKS),
    st.tuples(st.integers(1, 70), N_RANKS),
    st.sampled_from(["spread", "pad"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.data(),
)
def test_an_epoch_stopped_anywhere_is_finished_by_other_ranks_with_each_row_once(
    n_rows: int,
    before: tuple[int, int],
    after: tuple[int, int],
    tail: Tail,
    seed: int,
    epoch: int,
    data: st.DataObject,
) -> None:
    def samplers(batch_size: int, n_ranks: int) -> list[BatchSampler]:
        try:
            plan = BatchPlan(n_rows, batch_size, n_ranks, tail)
        except SettingsError:
            assume(False)
        return [BatchSampler(plan, rank, EpochOrder(n_rows, seed), epoch) for rank in range(n_ranks)]

    first, second = samplers(*before), samplers(*after)
    stop = data.draw(st.integers(0, len(first[0])))
    seen = [row for sampler in first for batch in list(sampler)[:stop] for row in batch.tolist()]
    (progress,) = {sampler.progress(stop) for sampler in first}
    for sampler in second:
        try:
            sampler.resume(progress)
        except SettingsError:
            assume(False)
    rest = [[batch.tolist() for batch in sampler] for sampler in second]

    n_left = {len(batches) for batches in rest}
    assert {len(sampler) for sampler in second} == {stop + n for n in n_left}
    assert len(n_left) == 1
    served = seen + [row for batches in rest for batch in batches for row in batch]
    if tail == "spread":
        assert sorted(served) == list(range(n_rows))
    else:
        assert set(served) == set(range(n_rows))
        assert len(served) < n_rows + after[0] * after[1] + before[0] * before[1]
    if before == after and tail == "spread":
        assert {len(sampler) for sampler in second} == {len(first[0])}

    again = second[0].progress(len(second[0]))
    assert again.n_rows == n_rows
    for sampler in second:
        sampler.set_epoch(epoch + 1)
    assert len(second[0]) == len(second[0].plan)


@settings(deadline=None)
@given(N_ROWS, st.integers(1, 70), N_RANKS, st.data())
def test_dropping_an_epoch_that_was_stopped_never_repeats_a_row(
    n_rows: int, batch_size: int, n_ranks: int, data: st.DataObject
) -> None:
    assume(n_rows >= batch_size * n_ranks)
    sampler = BatchSampler(BatchPlan(n_rows, batch_size, n_ranks, "drop"), 0, EpochOrder(n_rows, 0))
    stop = data.draw(st.integers(0, len(sampler)))
    progress = sampler.progress(stop)
    alone = BatchSampler(BatchPlan(n_rows, 1, 1, "drop"), 0, EpochOrder(n_rows, 0))
    alone.resume(progress)
    assert [int(batch[0]) for batch in alone] == EpochOrder(n_rows, 0)(0).tolist()[progress.n_rows :]


def test_too_few_rows_left_for_the_ranks_are_refused_or_padded() -> None:
    order = EpochOrder(10, 0)
    with pytest.raises(SettingsError, match=r"1 rows can't give 3 ranks .*; use fewer ranks.*tail='pad'"):
        BatchSampler(BatchPlan(10, 4, 3), 0, order).resume(Progress(0, 3, 9))
    padded = [BatchSampler(BatchPlan(10, 1, 3, "pad"), rank, order) for rank in range(3)]
    for sampler in padded:
        sampler.resume(Progress(0, 3, 9))
    places = order(0)[[9, 0, 1]].tolist()
    assert [[batch.tolist() for batch in sampler] for sampler in padded] == [[[p]] for p in places]


def test_without_a_seed_the_rows_keep_their_order() -> None:
    sampler = BatchSampler(BatchPlan(7, 3))
    assert [rows.tolist() for rows in sampler] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(sampler) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 0), "batch_size is 0"),
        ((10, 4, 1, "keep"), "tail is 'keep'; choose one of spread, drop, pad"),
        ((3, 2, 4), "3 rows can't give 4 ranks"),
        ((3, None, 4), "3 rows can't give 4 ranks"),
        ((3, 1, 2), "3 rows can't give 2 ranks"),
        ((0, 2), "0 rows can't give 1 ranks"),
        ((10, 4, 1, "spread", 11), "11 rows of an epoch of 10 can't be done"),
        ((7, 4, 2, "drop"), "tail='drop' leaves no batch: 7 rows are fewer than 2 ranks x batch_size 4"),
    ],
)
def test_a_plan_that_can_not_be_kept_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        BatchPlan(*arguments)
