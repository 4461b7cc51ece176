"""The op changes the tokens that have a combo, as plain float64 arithmetic does, and writes no other."""

from __future__ import annotations

import pytest
import torch

from easysteer_data.engine.steer_combine import MAX_ERASES, combine
from easysteer_data.engine.steer_op import steer
from easysteer_data.engine.steer_wire import SteerVector
from easysteer_data.errors import SettingsError

WIDTH, N_TOKENS = 24, 6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def vector(algorithm: str, step: torch.Tensor, scale: float = 1.0) -> SteerVector:
    return SteerVector(algorithm, scale, None, {0: step})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pair", [True, False])
def test_the_op_is_float64_arithmetic_rounded_once(dtype: torch.dtype, pair: bool) -> None:
    hidden, older = random(N_TOKENS, WIDTH, seed=1).to(dtype), random(N_TOKENS, WIDTH, seed=2).to(dtype)
    vectors = random(5, WIDTH, seed=3)
    #        nothing here, an added vector, one erase, both and another erase
    adds = torch.tensor([-1, 0, -1, 4], dtype=torch.int32)
    reads = torch.tensor([[-1, -1], [-1, -1], [1, -1], [2, 3]], dtype=torch.int32)
    writes = torch.tensor([[-1, -1], [-1, -1], [3, -1], [1, 0]], dtype=torch.int32)
    combos = torch.tensor([-1, 1, 0, 3, 2, 1, -1, 3], dtype=torch.int32)  # two tokens more than the step has
    exact, table = hidden.double(), vectors.double()
    stream = exact + older.double() if pair else exact
    expected = exact.clone()
    expected[[1, 5]] += table[0]
    expected[4] += (stream[4] @ table[1]) * table[3]
    expected[3] += table[4] + (stream[3] @ table[2]) * table[1] + (stream[3] @ table[3]) * table[0]
    found = hidden.clone()
    steer(
        found, older if pair else None, combos, torch.ones(1, dtype=torch.int32), vectors, adds, reads, writes
    )
    assert torch.equal(found[[0, 2]], hidden[[0, 2]])
    # float32 sums may fall on the other side of a bfloat16 midpoint: one unit in the last place.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert torch.allclose(found.double(), expected, rtol=tolerance, atol=1e-5)
    off = hidden.clone()
    steer(off, None, combos, torch.zeros(1, dtype=torch.int32), vectors, adds, reads, writes)
    assert torch.equal(off, hidden)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 2.0), (-1.0, 0.25)])
def test_each_erased_projection_becomes_one_minus_its_scale_times_what_it_was(
    scales: tuple[float, float],
) -> None:
    u, w, v, h = (random(WIDTH, seed=seed) for seed in range(4))
    oblique = u + 0.3 * w
    vectors = [vector("erase", u, scales[0]), vector("direct", v, 2), vector("erase", oblique, scales[1])]
    for order in (vectors, vectors[::-1]):
        action = combine(order, 0, exclusive=False)
        assert action is not None
        assert action.added is not None
        assert torch.allclose(action.added, 2 * v)
        erased = h + (action.reads @ h) @ action.writes
        for direction, scale in ((u, scales[0]), (oblique, scales[1])):
            along, before = erased @ direction, h @ direction
            assert torch.allclose(along, (1 - scale) * before, atol=1e-4)


def test_what_can_not_act_together_is_refused_with_its_layer() -> None:
    u, w = random(WIDTH, seed=1), random(WIDTH, seed=2)
    with pytest.raises(SettingsError, match="layer 0: 2 vectors meet"):
        combine([vector("direct", u), vector("erase", w)], 0, exclusive=True)
    assert combine([vector("direct", u), vector("erase", w)], 1, exclusive=True) is None
    with pytest.raises(SettingsError, match="layer 0: the erased directions are nearly dependent"):
        combine([vector("erase", u), vector("erase", -2 * u + 1e-4 * w)], 0, exclusive=False)
    many = [vector("erase", random(WIDTH, seed=seed)) for seed in range(MAX_ERASES + 1)]
    with pytest.raises(SettingsError, match=f"{MAX_ERASES + 1} vectors erase at one token"):
        combine(many, 0, exclusive=False)
