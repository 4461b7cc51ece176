"""Every way in which a row can be wrong is refused, with the prompt, the layer and the position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from easysteer_data.engine.proof import FinishedPrompt, ProvenRows, Recorded, Rules, prove
from easysteer_data.engine.wire import Chunk, StreamShape, Sums
from easysteer_data.errors import ProofError
from easysteer_data.select import SelectSpec
from easysteer_data.types import Gates

SHAPES = {"hidden_states": StreamShape((4, 9), 2, "float32")}
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
        values={"hidden_states": list(values)},
        peaks={"hidden_states": values.abs().amax(-1)},
    )


def good() -> list[Chunk]:
    return [chunk([1, 0, 0], [0, 0, 1], [20, 10, 11]), chunk([0, 1], [2, 1], [12, 21])]


def run(chunks: list[Chunk], dtype: str = "float32", gates: Gates = "raise") -> ProvenRows:
    shapes = {"hidden_states": StreamShape((4, 9), 2, dtype)}
    return prove(Recorded(chunks), PROMPTS, Rules(shapes, gates=gates))


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
    values = torch.stack(list(second.values["hidden_states"]))
    change(values)
    return [
        first,
        replace(
            second,
            values={"hidden_states": list(values)},
            peaks={"hidden_states": values.abs().amax(-1)},
        ),
    ]


def halved(part: Chunk) -> Chunk:
    return replace(part, values={"hidden_states": [v.half() for v in part.values["hidden_states"]]})


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
    assert prove(Recorded(good()), selected, Rules(SHAPES)).n_rows == (1, 2)


def test_the_last_generated_token_was_never_read_and_has_no_row() -> None:
    overrun = chunk([0], [3], [13])  # an engine that schedules ahead may run one step too many
    assert len(run([*good(), overrun]).index) == 5


def test_an_empty_selection_has_no_rows_but_a_width() -> None:
    nothing = [replace(prompt, select=SelectSpec(prompt_tokens=[5])) for prompt in PROMPTS]
    shapes = {"hidden_states": StreamShape((4, 9), 2, "float16")}
    rows = prove(Recorded([]), nothing, Rules(shapes))
    assert [layer.shape for layer in rows.values["hidden_states"]] == [(0, 2), (0, 2)]
    assert {layer.dtype for layer in rows.values["hidden_states"]} == {torch.float16}


def test_faults_are_counted_on_request() -> None:
    assert run(good(), gates="count").gates == {}
    zero = spoil(lambda values: values[:, 0].zero_())
    assert run(zero, gates="count").gates == {"all_zero": 2}
    broken = spoil(lambda values: values[1].fill_(float("nan")))
    assert run(broken, gates="count").gates == {"not_finite": 2}
    large = [halved(part) for part in spoil(lambda values: values[1, 0].fill_(70000.0))]
    assert run(large, "float16", gates="count").gates == {"overflow": 1}
    with pytest.raises(ValueError, match="choose raise or count"):
        run(good(), gates="warn")  # type: ignore[arg-type]


def test_a_missing_row_is_never_counted_away() -> None:
    with pytest.raises(ProofError, match="no row"):
        run(good()[:1], gates="count")


def test_the_last_row_of_each_prompt_is_chosen_among_the_steps_last_rows() -> None:
    rows = prove(Recorded(good()), PROMPTS, Rules(SHAPES, "last"))
    assert rows.index.position.tolist() == [2, 1]
    assert rows.values["hidden_states"][0].tolist() == [[2, 4], [101, 4]]


def test_means_are_sums_of_prompt_rows_and_single_generated_rows_over_the_number_of_proven_rows() -> None:
    prompts = [PROMPTS[0], replace(PROMPTS[1], generated_token_ids=[22, 23])]  # reads 22 at position 2
    values = torch.tensor([[[3.0, 12.0], [201.0, 8.0]], [[3.0, 27.0], [201.0, 18.0]]]).double()
    # Sums come in parts, in any order of prompts.
    parts = [
        Sums(torch.tensor([1], dtype=torch.int32), {"hidden_states": values[:, 1:] / 4}),
        Sums(
            torch.tensor([0, 1], dtype=torch.int32), {"hidden_states": values * torch.tensor([[1], [0.75]])}
        ),
    ]
    labels = [
        replace(part, values={"hidden_states": [v[:0] for v in part.values["hidden_states"]]})
        for part in good()
    ]
    # The engine ran on to position 3, past the end of the second prompt's text.
    generated = chunk([1, 1], [2, 3], [22, 23])
    rows = prove(Recorded([*labels, generated], parts), prompts, Rules(SHAPES, "mean"))
    assert rows.n_rows == (1, 1)
    assert rows.index.position.tolist() == [2, 2]
    means = [layer.tolist() for layer in rows.values["hidden_states"]]
    assert means == [[[1, 4], [101, 4]], [[1, 9], [101, 9]]]
