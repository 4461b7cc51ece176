"""The boxes between worker and driver: bytes arrive whole and in order, boxes come back, nothing hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.engine.block import BlockShape, BlockStream
from easysteer_data.engine.channel import Channel, Mailboxes
from easysteer_data.engine.early_rows import EarlyLook, EarlyRows
from easysteer_data.engine.lane import Lane
from easysteer_data.engine.mailbox import N_BOXES, Mailbox
from easysteer_data.engine.outlet import Outlet, StepRows
from easysteer_data.engine.ranks import Ranks
from easysteer_data.errors import EngineError

BYTES = 64 * N_BOXES


def put(mailbox: Mailbox, value: int) -> None:
    box = mailbox.take_box()
    mailbox.box(box, 64)[:] = value
    mailbox.publish(box, 64, value, has_values=True)
    mailbox.completed.fill_(mailbox.n_published)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_blocks_arrive_as_written_in_whatever_order_boxes_come_back(
    tmp_path_factory: pytest.TempPathFactory, n_blocks: int, seed: int
) -> None:
    reader = Mailbox(tmp_path_factory.mktemp("mailbox") / "file", BYTES, create=True)
    writer = Mailbox(reader.path, BYTES)
    rng = np.random.default_rng(seed)
    held, taken = [], []
    for number in range(n_blocks):
        if len(held) == N_BOXES or (held and rng.random() < 0.3):
            block = held.pop(rng.integers(len(held)))
            taken.append((block.number, block.n_rows, set(reader.box(block.box, 64).tolist())))
            reader.release(block)
        put(writer, number % 256)
        held += reader.blocks(number)
    taken += [(b.number, b.n_rows, set(reader.box(b.box, 64).tolist())) for b in held]
    assert sorted(taken) == [(i, i % 256, {i % 256}) for i in range(n_blocks)]


def test_a_writer_waits_for_a_box_and_goes_on_when_one_comes(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "file", BYTES, create=True)
    for number in range(N_BOXES):
        put(mailbox, number)
    waiting = threading.Thread(target=put, args=(mailbox, 99))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    mailbox.release(mailbox.blocks(0)[7])
    waiting.join(5)
    assert mailbox.blocks(N_BOXES)[0].n_rows == 99


def test_a_waiting_writer_is_freed_when_the_driver_goes(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "file", BYTES, create=True)
    for number in range(N_BOXES):
        put(mailbox, number)
    mailbox.close()
    with pytest.raises(EngineError, match="driver has gone"):
        mailbox.take_box()


@given(st.integers(0, 20000))
def test_a_block_has_as_many_rows_as_fit_a_box(n_bytes: int) -> None:
    n_rows = SHAPE.max_rows(n_bytes)
    assert not n_rows or SHAPE.n_bytes(n_rows, has_values=True) <= n_bytes
    assert SHAPE.n_bytes(n_rows + 1, has_values=True) > n_bytes


SHAPE = BlockShape(
    {
        "hidden_states": BlockStream(2, 3, torch.bfloat16),
        "router_logits": BlockStream(1, 5, torch.float32),
    }
)


ONE_RANK = Ranks([])  # one worker's chunks are whole as they are


def step(first: int, n: int) -> StepRows:
    position = np.arange(first, first + n, dtype=np.int32)
    values = torch.from_numpy(position).float()[None, :, None]
    return StepRows(
        prompt=np.full(n, 7, dtype=np.int32),
        position=position,
        token_id=torch.from_numpy(position) + 100,
        peaks={"hidden_states": values[:, :, 0].expand(2, n), "router_logits": values[:, :, 0]},
        values={
            "hidden_states": values + torch.arange(6).view(2, 1, 3) / 8,
            "router_logits": values.expand(1, n, 5),
        },
    )


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("block_rows", [1, 4, 10])
def test_rows_cross_in_blocks_and_more_of_them_than_there_are_boxes(block_rows: int, in_place: bool) -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet = Outlet(Lane(torch.device("cpu")))
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows)
    chunks = []
    with Channel(mailboxes, ONE_RANK, [SHAPE], look=lambda: None, in_place=in_place) as channel:
        writing = threading.Thread(target=lambda: [outlet.put(step(10 * i, 10)) for i in range(40)])
        writing.start()
        while writing.is_alive():
            chunks += channel.take()
        chunks += channel.take()
    # Most boxes are looked into where they lie; where few are left, rows are copied out.
    n_held = len(mailboxes.of_rank[0].held)
    assert 0 < n_held <= min(len(chunks), 3 * N_BOXES // 4 + 1) if in_place else n_held == 0
    assert mailboxes.of_rank[0].n_free == N_BOXES - n_held
    rows = torch.cat([torch.stack(list(chunk.values["hidden_states"])) for chunk in chunks], dim=1)
    expected = step(0, 400).values["hidden_states"]
    assert torch.equal(rows, expected.to(torch.bfloat16))
    assert torch.cat([chunk.position for chunk in chunks]).tolist() == list(range(400))
    assert torch.cat([chunk.token_id for chunk in chunks]).tolist() == list(range(100, 500))
    assert max(len(chunk) for chunk in chunks) == min(block_rows, 10)
    mailboxes.remove()


def seen(early: Sequence[EarlyRows]) -> list[tuple[list[int], list[bool]]]:
    """Positions of each block, and which layers of hidden states have arrived."""
    return [(rows.position.tolist(), [rows.has("hidden_states", i) for i in range(2)]) for rows in early]


def test_a_layer_of_a_block_is_seen_before_the_block_is_whole() -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet, look = Outlet(Lane(torch.device("cpu"))), EarlyLook(mailboxes.of_rank[0], SHAPE)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=6)
    rows = step(0, 10)
    assert look.new() == []
    blocks = outlet.reserve(rows.prompt, rows.position)
    assert blocks is not None
    early = look.new()
    assert seen(early) == [(list(range(6)), [False, False]), (list(range(6, 10)), [False, False])]
    assert all((block.prompt == 7).all() for block in early)
    outlet.put_layer(blocks, "hidden_states", 1, rows.values["hidden_states"][1])
    assert [arrived for _, arrived in seen(early)] == [[False, True], [False, True]]
    assert not any(block.has("router_logits", 0) for block in early)
    came = torch.cat([block.values["hidden_states"][1] for block in early])
    assert torch.equal(came, rows.values["hidden_states"][1].to(torch.bfloat16))
    assert mailboxes.of_rank[0].n_completed == 0
    outlet.publish(blocks, rows, list(SHAPE.streams))
    assert mailboxes.of_rank[0].n_completed == 2
    assert look.new() == []
    mailboxes.remove()


def test_a_block_that_is_given_up_never_arrives_and_its_box_serves_the_next() -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet, look = Outlet(Lane(torch.device("cpu"))), EarlyLook(mailboxes.of_rank[0], SHAPE)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=10)
    for first in (0, 100):
        rows = step(first, 10)
        blocks = outlet.reserve(rows.prompt, rows.position)
        assert blocks is not None
        if first == 0:
            outlet.put_layer(blocks, "hidden_states", 0, rows.values["hidden_states"][0])
            outlet.cancel(blocks)
    given_up, again = look.new()
    assert not given_up.is_current()
    assert not given_up.has("hidden_states", 0)
    assert again.is_current()
    assert [positions for positions, _ in seen([again])] == [list(range(100, 110))]
    assert not again.has("hidden_states", 0)
    mailboxes.remove()


@pytest.mark.parametrize("next_one", ["reserved", "put", "the same rows"])
def test_memory_that_another_block_has_by_now_is_told_from_that_of_a_block_that_was_given_up(
    next_one: str,
) -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet, look = Outlet(Lane(torch.device("cpu"))), EarlyLook(mailboxes.of_rank[0], SHAPE)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=10)
    rows = step(0, 10)
    blocks = outlet.reserve(rows.prompt, rows.position)
    assert blocks is not None
    (early,) = look.new()
    outlet.cancel(blocks)
    rows = step(0 if next_one == "the same rows" else 100, 10)
    if next_one == "put":
        outlet.put(rows)
    else:
        blocks = outlet.reserve(rows.prompt, rows.position)
        assert blocks is not None
        outlet.put_layer(blocks, "hidden_states", 0, rows.values["hidden_states"][0])
        assert look.new()[0].has("hidden_states", 0)
    early.arrived["hidden_states"][:] = 1  # as values of a block of other rows may look
    assert not early.has("hidden_states", 0)
    assert not early.is_current()
    mailboxes.remove()


def test_a_look_after_many_steps_finds_the_last_blocks_only() -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet, look = Outlet(Lane(torch.device("cpu"))), EarlyLook(mailboxes.of_rank[0], SHAPE)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=10)
    for i in range(3 * N_BOXES):
        rows = step(i, 1)
        blocks = outlet.reserve(rows.prompt, rows.position)
        assert blocks is not None
        if i + 1 < 3 * N_BOXES:
            outlet.cancel(blocks)
    found = look.new()
    assert len(found) == N_BOXES
    assert [rows.position.tolist() for rows in found if rows.is_current()] == [[3 * N_BOXES - 1]]
    assert look.new() == []
    mailboxes.remove()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rows_are_shown_early_where_they_stay_and_are_whole(in_place: bool, n_ranks: int) -> None:
    mailboxes = Mailboxes([1024 * N_BOXES] * n_ranks)
    outlet, rows = Outlet(Lane(torch.device("cpu"))), step(0, 10)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=10)
    shown: list[EarlyRows] = []
    shapes = [SHAPE] * n_ranks
    with Channel(
        mailboxes, ONE_RANK, shapes, look=lambda: None, in_place=in_place, idle_s=0.001, early=shown.extend
    ):
        outlet.reserve(rows.prompt, rows.position)
        deadline = time.monotonic() + (5 if in_place and n_ranks == 1 else 0.05)
        while not shown and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(shown) == (1 if in_place and n_ranks == 1 else 0)
    mailboxes.remove()


def test_rows_are_not_shown_early_where_boxes_are_few_since_they_will_not_stay() -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    outlet, rows = Outlet(Lane(torch.device("cpu"))), step(0, 10)
    outlet.open(mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows=10)
    taken = mailboxes.of_rank[0].take_boxes(3 * N_BOXES // 4)
    assert taken is not None
    shown: list[EarlyRows] = []
    n_looks = 0

    def early(new: Sequence[EarlyRows]) -> None:
        nonlocal n_looks
        n_looks += 1
        shown.extend(new)

    def wait_for_looks() -> None:
        deadline, stop = time.monotonic() + 5, n_looks + 3
        while n_looks < stop and time.monotonic() < deadline:
            time.sleep(0.001)
        assert n_looks >= stop

    with Channel(mailboxes, ONE_RANK, [SHAPE], lambda: None, in_place=True, early=early):
        outlet.reserve(rows.prompt, rows.position)
        wait_for_looks()
        assert shown == []
        for box in taken:
            mailboxes.of_rank[0].return_box(box)
        outlet.reserve(rows.prompt, rows.position + 50)
        wait_for_looks()
    assert [rows.position[0].item() for rows in shown] == [50]
    mailboxes.remove()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20), st.integers(1, 4), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_full_blocks_end_with_the_last_prompt_of_a_group(
    lengths: list[int], block_rows: int, group: int, grouped: bool
) -> None:
    mailboxes = Mailboxes([2**18])
    outlet = Outlet(Lane(torch.device("cpu")))
    outlet.open(
        mailboxes.of_rank[0].path, mailboxes.n_bytes[0], SHAPE, block_rows, group if grouped else None
    )
    prompts = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    with Channel(mailboxes, ONE_RANK, [SHAPE], look=lambda: None, in_place=False) as channel:
        outlet.put(replace(step(0, len(prompts)), prompt=prompts))
        blocks = [chunk.prompt.numpy() for chunk in channel.take()]
    mailboxes.remove()
    assert np.array_equal(np.concatenate(blocks), prompts)
    assert max(map(len, blocks)) <= block_rows
    for block, after in pairwise(blocks):
        if not grouped:
            assert len(block) == block_rows
        elif block[-1] // group == after[0] // group:  # a group that is larger than a block is cut
            assert len(block) == block_rows
            assert block[0] // group == block[-1] // group


def test_a_worker_in_another_process_is_read_without_any_message(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "file", BYTES, create=True)
    code = (
        "import sys; from pathlib import Path; from easysteer_data.engine.mailbox import Mailbox\n"
        f"mailbox = Mailbox(Path(sys.argv[1]), {BYTES})\n"
        "for i in range(500):\n"
        "    box = mailbox.take_box(); mailbox.box(box, 64)[:] = i % 256\n"
        "    mailbox.publish(box, 64, i, has_values=False); mailbox.completed.fill_(i + 1)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(mailbox.path)])
    seen: list[tuple[int, set[int]]] = []
    while len(seen) < 500:
        mailbox.wait(len(seen) + 1, look=lambda: None)
        for block in mailbox.blocks(len(seen)):
            seen.append((block.n_rows, set(mailbox.box(block.box, 64).tolist())))
            mailbox.release(block)
    assert worker.wait() == 0
    assert seen == [(i, {i % 256}) for i in range(500)]


def test_rows_that_are_still_looked_at_survive_the_next_capture() -> None:
    mailboxes = Mailboxes([1024 * N_BOXES])
    (mailbox,) = mailboxes.of_rank
    kept = []
    for capture in range(3 * N_BOXES):
        mailbox.reset()
        outlet = Outlet(Lane(torch.device("cpu")))
        outlet.open(mailbox.path, mailboxes.n_bytes[0], SHAPE, 10)
        with Channel(mailboxes, ONE_RANK, [SHAPE], look=lambda: None, in_place=True) as channel:
            outlet.put(step(capture, 1))
            kept += channel.take()
    rows = torch.cat([chunk.values["router_logits"][0] for chunk in kept])
    assert rows[:, 0].tolist() == list(range(3 * N_BOXES))
    view = kept[0].values["router_logits"][0][0, 1:3]
    assert N_BOXES // 4 - 1 <= mailbox.n_free <= N_BOXES // 4
    del kept[:], rows
    assert len(mailbox.held) == 1  # a view alone keeps its box
    assert view.tolist() == [0, 0]
    del view
    assert not mailbox.held
    mailboxes.remove()


def test_an_engine_that_died_ends_the_wait_for_its_rows(tmp_path: Path) -> None:
    def dead() -> None:
        raise EngineError("the engine has died")

    mailbox = Mailbox(tmp_path / "file", BYTES, create=True)
    with pytest.raises(EngineError, match="died"):
        mailbox.wait(1, look=dead, check_s=0.01)
