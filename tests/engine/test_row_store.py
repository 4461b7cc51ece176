"""Rows put at their places as they arrive are the rows that a sort of everything would give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.engine.copy_rows import copy_rows
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.wire import Chunk, StreamShape

SHAPES = {"hidden_states": StreamShape((0, 3), 5, "bfloat16")}


def chunk(prompts: list[int], positions: list[int]) -> Chunk:
    """Rows whose values tell their prompt, position, layer and column."""
    n = len(prompts)
    value = torch.tensor(prompts)[:, None, None] * 16 + torch.tensor(positions)[:, None, None]
    values = (value + torch.arange(2)[None, :, None] * 64 + torch.zeros(n, 2, 5)).to(torch.bfloat16)
    return Chunk(
        torch.tensor(prompts, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32) + 1000,
        {"hidden_states": list(values.transpose(0, 1))},
        {"hidden_states": value[:, :, 0].float().expand(n, 2).transpose(0, 1)},
    )


def add(store: RowStore, one: Chunk, first: int, n_prompts: int) -> None:
    """The chunk's rows of the store's prompts."""
    owner = one.prompt.numpy() - first
    rows = np.flatnonzero((owner >= 0) & (owner < n_prompts))
    if len(rows):
        store.add(one, rows)


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    spare=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_any_batching_gives_the_rows_in_order(lengths: list[int], spare: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = 3
    chunks, done = [], [0] * len(lengths)
    prompts, positions = [], []
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        prompts.append(100)  # a prompt of another part in every step
        positions.append(0)
        for i in rng.permutation(len(lengths)).tolist():
            n = min(int(rng.integers(0, 5)), lengths[i] - done[i])
            prompts += [first + i] * n
            positions += range(done[i], done[i] + n)
            done[i] += n
        if rng.random() < 0.5:  # else the next step's rows follow in the same chunk
            chunks.append(chunk(prompts, positions))
            prompts, positions = [], []
    chunks.append(chunk(prompts, positions))
    max_rows = [n + s for n, s in zip(lengths, spare, strict=False)]
    with ThreadPoolExecutor(2) as copiers:
        store = RowStore(first, max_rows, SHAPES, copiers, HostMemory(0))
        for one in chunks:
            add(store, one, first, len(lengths))
        rows = store.finish()
    expected = chunk(
        [first + i for i, n in enumerate(lengths) for _ in range(n)], [p for n in lengths for p in range(n)]
    )
    assert torch.equal(rows.prompt, expected.prompt)
    assert torch.equal(rows.position, expected.position)
    assert torch.equal(rows.token_id, expected.token_id)
    assert all(map(torch.equal, rows.values["hidden_states"], expected.values["hidden_states"]))
    assert torch.equal(rows.peaks["hidden_states"], expected.peaks["hidden_states"])


def test_rows_that_the_engine_ran_past_a_prompts_end_are_left_out() -> None:
    with ThreadPoolExecutor(1) as copiers:
        store = RowStore(0, [2, 2], SHAPES, copiers, HostMemory(0))
        add(store, chunk([0, 0, 0, 1], [0, 1, 2, 0]), 0, 2)
        add(store, chunk([1, 1], [1, 2]), 0, 2)
        rows = store.finish()
    assert rows.prompt.tolist() == [0, 0, 1, 1]
    assert rows.position.tolist() == [0, 1, 0, 1]
    expected = chunk([0, 0, 1, 1], [0, 1, 0, 1]).values["hidden_states"]
    assert all(map(torch.equal, rows.values["hidden_states"], expected))


@pytest.mark.parametrize("compiled_bytes", [0, 2**20], ids=["compiled", "by torch"])
@given(
    st.integers(1, 80), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.integers(0, 2**31)
)
@settings(max_examples=60, deadline=None)
def test_rows_are_copied_by_index_in_long_and_short_runs(
    compiled_bytes: int, n: int, dtype: torch.dtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    source = torch.arange(2 * n * 3).view(n, 2, 3).transpose(0, 1).to(dtype)
    if seed % 3:
        source = source.contiguous()
    n_cuts = int(rng.integers(0, n))
    pieces = np.array_split(np.arange(n), np.sort(rng.choice(n, n_cuts, replace=False)) if n_cuts else 1)
    sources = np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
    places = rng.permutation(n) if seed % 2 else np.arange(n)
    out = torch.zeros(2, n, 3, dtype=dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("easysteer_data.engine.copy_rows._COMPILED_BYTES", compiled_bytes)
        copy_rows(source, sources, out, places)
        apart = [torch.zeros(n, 3, dtype=dtype) for _ in range(2)]
        copy_rows(list(source), sources, apart, places)
    expected = torch.zeros_like(out)
    expected[:, torch.from_numpy(places)] = source[:, torch.from_numpy(sources)]
    assert torch.equal(out, expected)
    assert torch.equal(torch.stack(apart), expected)


@pytest.mark.parametrize(
    ("source", "rows", "error"),
    [
        (torch.zeros(1, 4, 3), [0, 4], IndexError),
        (torch.zeros(1, 4, 3), [-1, 0], IndexError),
        (torch.zeros(1, 4, 3, dtype=torch.float16), [0, 1], ValueError),
        (torch.zeros(1, 4, 2), [0, 1], ValueError),
        (torch.zeros(1, 3, 4).transpose(1, 2), [0, 1], ValueError),
        (torch.zeros(1, 4, 3), [0, 1, 2], ValueError),
        (torch.zeros(1, 4, 3, device="meta"), [0, 1], ValueError),
    ],
)
@pytest.mark.parametrize("compiled_bytes", [0, 2**20], ids=["compiled", "by torch"])
def test_what_does_not_fit_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
    source: torch.Tensor,
    rows: list[int],
    error: type[Exception],
    compiled_bytes: int,
) -> None:
    monkeypatch.setattr("easysteer_data.engine.copy_rows._COMPILED_BYTES", compiled_bytes)
    with pytest.raises(error):
        copy_rows(source, np.array(rows), torch.zeros(1, 4, 3), np.array([0, 1]))


def test_rows_that_came_all_at_once_are_not_copied() -> None:
    whole = chunk([8, 3, 3, 4, 5, 5], [0, 0, 1, 0, 0, 1])
    with ThreadPoolExecutor(1) as copiers:
        store = RowStore(3, [2, 1, 2], SHAPES, copiers, HostMemory(0))
        add(store, whole, 3, 3)
        rows = store.finish()
        values = rows.values["hidden_states"]
        for layer, given in zip(values, whole.values["hidden_states"], strict=True):
            assert torch.equal(layer, given[1:])
            assert layer.data_ptr() == given[1].data_ptr()
        assert rows.prompt.tolist() == [3, 3, 4, 5, 5]
        out_of_order = RowStore(3, [2, 1, 2], SHAPES, copiers, HostMemory(0))
        add(out_of_order, chunk([4, 3, 3, 5, 5], [0, 0, 1, 0, 1]), 3, 3)
        assert out_of_order.finish().prompt.tolist() == [3, 3, 4, 5, 5]
