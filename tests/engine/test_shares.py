"""Shared memory goes to the workers that hand rows over, and is enough for some in each box."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from easysteer_data.engine.block import BlockShape, BlockStream
from easysteer_data.engine.channel import Mailboxes
from easysteer_data.engine.mailbox import N_BOXES
from easysteer_data.engine.shares import kept_rows, mailbox_sizes, share_of_each

NONE = BlockShape({})  # a tensor-parallel rank whose hidden states another one hands over


def layers_of(n_layers: int, width: int) -> BlockShape:
    return BlockShape({"hidden_states": BlockStream(n_layers, width, torch.bfloat16)})


def test_a_bound_for_all_is_shared_by_those_that_hand_rows_over() -> None:
    shape = layers_of(2, 64)
    assert share_of_each([shape], 2**30) == 2**30
    assert share_of_each([shape, NONE, NONE, NONE], 2**30) == 2**30
    assert share_of_each([shape, shape, NONE, NONE], 2**30) == 2**29


@pytest.mark.parametrize(("n_layers", "width", "n_ranks"), [(126, 16384, 8), (80, 8192, 8), (32, 4096, 1)])
def test_the_longest_rows_fit_a_box_a_few_times_however_small_the_bound_is(
    n_layers: int, width: int, n_ranks: int
) -> None:
    shapes = [layers_of(n_layers, width), *[NONE] * (n_ranks - 1)]
    each = share_of_each(shapes, 10**6)
    assert shapes[0].max_rows(each // N_BOXES) >= 16
    assert each < 2 * N_BOXES * 16 * n_layers * width * 2


@pytest.mark.parametrize("bytes_each", [2**20, 2**30])
def test_a_rank_without_rows_gets_room_for_the_labels_of_a_step_whatever_the_layers(bytes_each: int) -> None:
    sizes = [mailbox_sizes([layers_of(n, 64), NONE], bytes_each, 1000) for n in (1, 2, 30)]
    assert sizes[0] == sizes[1] == sizes[2]
    given, labels = sizes[0]
    assert given == bytes_each
    assert labels <= min(N_BOXES * 13_000, bytes_each)
    assert NONE.max_rows(labels // N_BOXES) >= min(1000, layers_of(1, 64).max_rows(bytes_each // N_BOXES))


def test_mailboxes_are_as_large_as_was_asked_of_each_and_less_where_there_is_less_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mailboxes = Mailboxes([2**20, 2**18])
    assert [mailbox.box_bytes * N_BOXES for mailbox in mailboxes.of_rank] == [2**20, 2**18]
    usage: Any = type("usage", (), {"free": 2**20})
    monkeypatch.setattr("easysteer_data.engine.channel.shutil.disk_usage", lambda _: usage)
    scarce = Mailboxes([3 * 2**18, 2**18])  # half of what is free goes to all together
    assert scarce.n_bytes == [3 * 2**17, 2**17]


def test_all_ranks_keep_as_many_rows_as_the_longest_allow() -> None:
    assert kept_rows([layers_of(32, 4096), NONE]) == 1024
    assert kept_rows([layers_of(1, 4096), layers_of(4, 4096)]) == 8192
