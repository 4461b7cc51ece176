"""Large memory is used again when its last view is gone, and not before."""

from __future__ import annotations

import gc

import torch

from easysteer_data.engine.host_memory import HostMemory

SHAPE = (8, 1024, 5000)  # of bfloat16
SIZE = 80 * 2**20  # in whole huge pages, 78.125 MiB


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    memory = HostMemory(2**30)
    first = memory.empty(SHAPE, torch.bfloat16)
    address = first.data_ptr()
    first.fill_(1)
    view = first[3, 5:7]
    del first
    gc.collect()
    second = memory.empty(SHAPE, torch.bfloat16)
    second.fill_(2)
    assert second.data_ptr() != address
    assert (view == 1).all()
    del view
    gc.collect()
    # A little smaller fits as well; much smaller does not, since its rows would keep all of it.
    assert memory.empty((8, 1000, 10000), torch.bfloat16).data_ptr() not in (address, second.data_ptr())
    assert memory.empty((8, 1020, 5000), torch.bfloat16).data_ptr() == address


def test_tensors_are_contiguous_writable_and_outlive_their_source() -> None:
    large = HostMemory(0).empty(SHAPE, torch.float32)
    large.fill_(3)
    gc.collect()
    assert large.shape == SHAPE
    assert large.is_contiguous()
    assert (large == 3).all()
    assert HostMemory(0).empty((2, 3), torch.float16).shape == (2, 3)


def test_no_more_than_was_agreed_is_kept_beside_what_is_in_use() -> None:
    memory = HostMemory(2 * SIZE)
    tensors = [memory.empty(SHAPE, torch.bfloat16) for _ in range(3)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    tensors.pop(0)  # two are in use
    assert memory.empty(SHAPE, torch.bfloat16).data_ptr() not in addresses[1:]
    assert len(memory._free) + len(memory._returned) == 0
    tensors.pop(0)  # one is
    assert len(memory._free) + len(memory._returned) == 1
    assert memory.empty(SHAPE, torch.bfloat16).data_ptr() == addresses[1]
    tensors.clear()
    gc.collect()
    assert len(memory._free) + len(memory._returned) == 2
    memory.limit(0)
    first, second = memory.empty(SHAPE, torch.bfloat16), memory.empty(SHAPE, torch.bfloat16)
    del first, second
    gc.collect()
    assert len(memory._free) + len(memory._returned) == 0
    assert not memory._given_out


def test_what_is_kept_makes_room_for_what_does_not_fit_it() -> None:
    memory = HostMemory(3 * SIZE)
    tensors = [memory.empty(SHAPE, torch.bfloat16) for _ in range(3)]
    tensors.clear()
    gc.collect()
    larger = memory.empty((2, *SHAPE), torch.bfloat16)  # takes two of three, so that one may stay
    assert len(memory._free) == 1
    del larger
    gc.collect()
    assert len(memory._free) + len(memory._returned) == 2
    memory.limit(SIZE)
    assert [len(m) for m in memory._free] == [SIZE]
