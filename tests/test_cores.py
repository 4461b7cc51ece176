"""Helper threads use one core each, and leave torch as it was for all others."""

from __future__ import annotations

from threading import Barrier, Thread

import torch

from easysteer_data.cores import helper_pool


def test_torch_uses_one_core_in_each_helper_and_as_many_as_before_elsewhere() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with helper_pool(4, "helper") as pool:
            together = Barrier(4)

            def n_threads(_: int) -> int:
                together.wait()  # so that each call is in another thread
                torch.randn(200_000).sum()
                return torch.get_num_threads()

            assert list(pool.map(n_threads, range(4))) == [1, 1, 1, 1]
            assert torch.get_num_threads() == 3
            found: list[int] = []
            thread = Thread(target=lambda: found.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert found == [3]
    finally:
        torch.set_num_threads(before)
