from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from easysteer_data.data_options import RowOrder
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.serving.order import EpochOrder, class_weights, shuffle_quality

CLASSES = np.array([0] * 7 + [2] * 30 + [1] * 12)


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_the_order_depends_on_seed_and_epoch_only(seed: int, epoch: int) -> None:
    order = EpochOrder(97, seed)(epoch)

    np.testing.assert_array_equal(order, EpochOrder(97, seed)(epoch))
    for other_seed, other_epoch in ((seed + 1, epoch), (seed, epoch + 1), (seed + 1, max(epoch - 1, 0))):
        assert not np.array_equal(order, EpochOrder(97, other_seed)(other_epoch))


def test_every_row_is_equally_likely_at_the_first_place() -> None:
    n_epochs, n_rows = 2000, 10
    order = EpochOrder(n_rows, 0)
    counts = np.bincount([order(epoch)[0] for epoch in range(n_epochs)], minlength=n_rows)

    chi_squared = ((counts - n_epochs / n_rows) ** 2 / (n_epochs / n_rows)).sum()
    assert chi_squared < 27.9  # 99.9 % quantile of chi-squared with 9 degrees of freedom


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 500), st.integers(0, 3))
def test_blocks_in_random_order_hold_each_row_once(
    n_rows: int, block_rows: int, window_rows: int, epoch: int
) -> None:
    blocks = np.arange(0, n_rows, block_rows)
    order = EpochOrder(n_rows, 0, RowOrder(shuffle="blocks", window_rows=window_rows), blocks)
    assert sorted(order(epoch).tolist()) == list(range(n_rows))


def test_a_window_of_one_row_keeps_blocks_whole_and_their_order_random() -> None:
    blocks = np.arange(0, 1000, 10)
    order = EpochOrder(1000, 0, RowOrder(shuffle="blocks", window_rows=1), blocks)(0)
    runs = order.reshape(100, 10)
    np.testing.assert_array_equal(runs - runs[:, :1], np.tile(np.arange(10), (100, 1)))
    assert not np.array_equal(runs[:, 0], blocks)


def test_quality_is_one_for_a_full_shuffle_and_near_zero_for_the_stored_order() -> None:
    blocks = np.arange(0, 100_000, 100)

    def quality(options: RowOrder) -> Any:
        order = EpochOrder(100_000, 0, options, blocks if options.shuffle == "blocks" else None)(0)
        return shuffle_quality(order, blocks, 256)

    full, stored = quality(RowOrder()), quality(RowOrder(shuffle="none"))
    assert full.mixing == pytest.approx(1, abs=0.01)
    assert full.n_blocks_open > 950
    # 256 rows in a row touch 3.55 blocks of 100; a full shuffle is expected to touch 226.0 of 1000.
    assert stored.mixing == pytest.approx(3.55 / 226.0, rel=0.01)
    assert stored.n_blocks_open == pytest.approx(1)
    windows = [quality(RowOrder(shuffle="blocks", window_rows=n)) for n in (100, 1000, 10_000, 50_000)]
    mixings = [one.mixing for one in windows]
    assert mixings == sorted(mixings)
    assert mixings[2] > 0.35
    assert mixings[3] > 0.8
    # A window of 100 blocks has about 100 of them open.
    assert windows[2].n_blocks_open == pytest.approx(100, rel=0.1)
    assert full.n_blocks == 1000


def test_quality_needs_a_batch_of_rows() -> None:
    with pytest.raises(SettingsError, match="5 rows are less than a batch of 8"):
        shuffle_quality(np.arange(5), np.array([0]), 8)


@pytest.mark.parametrize("shuffle", ["rows", "none"])
def test_undersampling_takes_as_many_of_each_class_and_other_ones_each_epoch(shuffle: Any) -> None:
    order = EpochOrder(len(CLASSES), 0, RowOrder(balance="undersample", shuffle=shuffle), None, CLASSES)
    seen: set[int] = set()
    for epoch in range(40):
        places = order(epoch)
        assert len(places) == len(order) == 21
        assert len(set(places.tolist())) == 21
        np.testing.assert_array_equal(np.bincount(CLASSES[places]), [7, 7, 7])
        seen |= set(places.tolist())
    assert seen == set(range(len(CLASSES)))


def test_oversampling_repeats_rows_of_rarer_classes_evenly() -> None:
    order = EpochOrder(len(CLASSES), 0, RowOrder(balance="oversample"), None, CLASSES)
    places = order(3)
    assert len(places) == len(order) == 90
    np.testing.assert_array_equal(np.bincount(CLASSES[places]), [30, 30, 30])
    repeats = np.bincount(places, minlength=len(CLASSES))
    for code, (low, high) in enumerate([(4, 5), (2, 3), (1, 1)]):
        assert {low, high} >= set(repeats[code == CLASSES].tolist())
    np.testing.assert_array_equal(places, EpochOrder(49, 0, RowOrder(balance="oversample"), None, CLASSES)(3))


def test_blocks_are_mixed_after_classes_are_balanced() -> None:
    options = RowOrder(shuffle="blocks", window_rows=1, balance="undersample")
    order = EpochOrder(len(CLASSES), 0, options, np.arange(0, 49, 7), CLASSES)
    np.testing.assert_array_equal(np.bincount(CLASSES[order(0)]), [7, 7, 7])


def test_class_weights_are_those_of_scikit_learn() -> None:
    expected = compute_class_weight("balanced", classes=np.arange(3), y=CLASSES)
    np.testing.assert_allclose(class_weights(CLASSES, 3), expected, rtol=1e-6)
    np.testing.assert_array_equal(class_weights(np.array([0, 2, 2]), 4) > 0, [True, False, True, False])


def test_rows_without_a_class_can_not_be_balanced() -> None:
    unlabelled = np.array([0, -1, 1, -1])
    with pytest.raises(RunError, match="2 of 4 rows have no label"):
        EpochOrder(4, 0, RowOrder(balance="undersample"), None, unlabelled)
    with pytest.raises(RunError, match="leave them out with labelled_only=True"):
        class_weights(unlabelled, 2)
