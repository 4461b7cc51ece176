"""Every way in which a row can be wrong is refused, with the prompt, the layer and the position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from easysteer_data.engine.proof import FinishedPrompt, ProvenRows, prove
from easysteer_data.engine.wire import Chunk, StreamShape
from easysteer_data.errors import ProofError
from easysteer_data.select import SelectSpec

SHAPES = {"hidden_states": StreamShape((4, 9), 2)}
PROMPTS = [
    FinishedPrompt(0, "first", [10, 11, 12], [13], None),
    FinishedPrompt(1, "second", [20, 21], [22], None),
]


def chunk(prompt: list[int], position: list[int], token_id: list[int]) -> Chunk:
    values = torch.tensor(
        [[[p * 100 + q, layer] for p, q in zip(prompt, position, strict=True)] for layer in (4, 9)]
    )
    values = values.float()
    return Chunk(
        prompt=torch.tensor(prompt, dtype=torch.int32),
        position=torch.tensor(position, dtype=torch.int32),
        token_id=torch.tensor(token_id, dtype=torch.int32),
        values={"hidden_states": values},
        peaks={"hidden_states": values.abs().amax(-1)},
    )


def good() -> list[Chunk]:
    return [chunk([1, 0, 0], [0, 0, 1], [20, 10, 11]), chunk([0, 1], [2, 1], [12, 21])]


def run(chunks: list[Chunk], dtype: str = "float32") -> ProvenRows:
    return prove(chunks, PROMPTS, SHAPES, dtype)


def test_rows_come_in_order_of_prompt_and_position() -> None:
    rows = run(good())
    assert rows.n_rows == (3, 2)
    assert rows.index.prompt.tolist() == [0, 0, 0, 1, 1]
    assert rows.index.position.tolist() == [0, 1, 2, 0, 1]
    assert rows.index.token_id.tolist() == [10, 11, 12, 20, 21]
    assert rows.values["hidden_states"][1].tolist() == [[0, 9], [1, 9], [2, 9], [100, 9], [101, 9]]


def test_a_missing_row_names_its_prompt_and_position() -> None:
    with pytest.raises(ProofError, match=r"prompt 0 \(first\), position 2: no row"):
        run([good()[0], chunk([1], [1], [21])])
    with pytest.raises(ProofError, match=r"prompt 0 \(first\), position 0: no row"):
        run([])


def test_a_doubled_row_is_refused() -> None:
    with pytest.raises(ProofError, match=r"prompt 1 \(second\), position 1: more than one row"):
        run([*good(), chunk([1], [1], [21])])


def test_a_row_of_another_token_is_refused() -> None:
    with pytest.raises(ProofError, match=r"prompt 0 \(first\), position 2: .* token 99, but .* token 12"):
        run([good()[0], chunk([0, 1], [2, 1], [99, 21])])


def spoil(change: Callable[[torch.Tensor], None]) -> list[Chunk]:
    first, second = good()
    values = second.values["hidden_states"].clone()
    change(values)
    return [
        first,
        replace(second, values={"hidden_states": values}, peaks={"hidden_states": values.abs().amax(-1)}),
    ]


def halved(part: Chunk) -> Chunk:
    return replace(part, values={"hidden_states": part.values["hidden_states"].half()})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_names_the_layer(bad: float) -> None:
    with pytest.raises(ProofError, match=r"prompt 1 \(second\), position 1, layer 9, .*NaN or infinity"):
        run(spoil(lambda values: values[1, 1].fill_(bad)))


def test_an_all_zero_row_is_refused() -> None:
    with pytest.raises(ProofError, match=r"prompt 0 \(first\), position 2, layer 4, .*all zeros"):
        run(spoil(lambda values: values[0, 0].zero_()))


def test_an_overflow_of_the_storage_dtype_is_refused() -> None:
    with pytest.raises(ProofError, match=r"layer 9, hidden_states \(float16\): .*70000 overflows"):
        run([halved(part) for part in spoil(lambda values: values[1, 0].fill_(70000.0))], "float16")
    assert len(run(spoil(lambda values: values[1, 0].fill_(70000.0))).index) == 5


def test_rows_that_were_not_asked_for_are_left_out() -> None:
    selected = [replace(PROMPTS[0], select=SelectSpec(prompt_positions=[-1])), PROMPTS[1]]
    assert prove(good(), selected, SHAPES, "float32").n_rows == (1, 2)


def test_the_last_generated_token_was_never_read_and_has_no_row() -> None:
    overrun = chunk([0], [3], [13])  # an engine that schedules ahead may run one step too many
    assert len(run([*good(), overrun]).index) == 5


def test_an_empty_selection_has_no_rows_but_a_width() -> None:
    nothing = [replace(prompt, select=SelectSpec(prompt_tokens=[5])) for prompt in PROMPTS]
    rows = prove([], nothing, SHAPES, "float16")
    assert rows.values["hidden_states"].shape == (2, 0, 2)
    assert rows.values["hidden_states"].dtype == torch.float16
