from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.probes.standardise import Moments


@settings(deadline=None)  # the first example may wait for the machine
@given(st.integers(0, 2**31), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_moments_of_batches_are_those_of_all_rows(seed: int, batches: list[int]) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(sum(batches), 2, 3)) * [1e-3, 1, 1e4] + [1, 1e4, 0]).astype(np.float32)

    moments = Moments.of_batches({"x": part} for part in torch.from_numpy(x).split(batches))

    assert moments.n_rows == len(x)
    np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(axis=0), rtol=1e-12, atol=1e-9)
    expected = x.astype(np.float64).std(axis=0)
    np.testing.assert_allclose(moments.std, np.where(expected == 0, 1, expected), rtol=1e-9)


def test_a_constant_feature_has_a_std_of_one() -> None:
    x = torch.full((1000, 1, 3), 0.1)
    x[:, 0, 1] = 0
    x[::2, 0, 2] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    moments = Moments.of_batches({"x": part} for part in x.split(7))
    assert moments.std[0, :2].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(moments.std[0, 2], x[:, 0, 2].double().std(correction=0))


def test_rows_of_one_layer_may_come_without_its_axis() -> None:
    x = torch.randn(9, 4)
    assert torch.equal(Moments.of_rows(x).mean, Moments.of_rows(x[:, None]).mean)
