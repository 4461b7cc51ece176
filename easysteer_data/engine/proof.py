"""Turns chunks into rows in order, and proves each one: none missing, doubled, mislabelled, empty or broken.

Pure numpy and torch. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easysteer_data.engine.wire import DTYPES, Chunk, StreamShape
from easysteer_data.errors import ProofError
from easysteer_data.select import SelectSpec
from easysteer_data.types import RowIndex, Stream


@dataclass(frozen=True, slots=True)
class FinishedPrompt:
    """A prompt that the engine has finished, as the request itself tells.

    Attributes:
        prompt: index of the prompt; its tag.
        name: how errors call it.
        prompt_token_ids: the request's own prompt tokens.
        generated_token_ids: its completion. The last one was never read by the model.
        select: the prompt's selection, None = every row.
    """

    prompt: int
    name: str
    prompt_token_ids: Sequence[int]
    generated_token_ids: Sequence[int]
    select: SelectSpec | None

    def tokens_read(self) -> np.ndarray:
        """int32 [n], the tokens that the model had to read, at positions 0 to n - 1."""
        return np.array([*self.prompt_token_ids, *self.generated_token_ids[:-1]], dtype=np.int32)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (positions, token ids) of the rows that must be there."""
        tokens = self.tokens_read()
        positions = np.arange(len(tokens), dtype=np.int32)
        if self.select is not None:
            mask = self.select.mask(len(self.prompt_token_ids), 0, tokens)
            positions, tokens = positions[mask], tokens[mask]
        return positions, tokens


@dataclass(frozen=True, slots=True)
class ProvenRows:
    """Rows that passed every gate, in order of (prompt, position).

    Attributes:
        index: labels of the rows.
        values: stream -> Tensor [n_layers, n, width], layers as ordered.
        n_rows: rows of each prompt, as the prompts were given.
    """

    index: RowIndex
    values: Mapping[Stream, torch.Tensor]
    n_rows: tuple[int, ...]


def prove(
    chunks: Sequence[Chunk],
    prompts: Sequence[FinishedPrompt],
    shapes: Mapping[Stream, StreamShape],
    dtype: str,
) -> ProvenRows:
    """Order the chunks' rows as the prompts are given and check every one.

    Args:
        chunks: all chunks that may hold rows of these prompts.
        prompts: finished prompts, ascending by index.
        shapes: stream -> its layers, in the chunks' order, and its width.
        dtype: storage dtype of the rows.

    Raises:
        ProofError: names the prompt, the layer and the position of the first row that is wrong.
    """
    expected = [prompt.expected() for prompt in prompts]
    n_rows = tuple(len(positions) for positions, _ in expected)
    index = _expected_index(prompts, expected)
    names = {prompt.prompt: prompt.name for prompt in prompts}
    chosen = _choose(chunks, index, names)
    values: dict[Stream, torch.Tensor] = {}
    for stream, shape in shapes.items():
        n_layers = len(shape.layer_ids)
        values[stream] = torch.empty(n_layers, len(index), shape.width, dtype=DTYPES[dtype])
        peaks = torch.empty(n_layers, len(index))
        _gather([chunk.values[stream] for chunk in chunks], chosen, values[stream])
        _gather([chunk.peaks[stream] for chunk in chunks], chosen, peaks)
        _check_peaks(peaks, index, names, shape.layer_ids, f"{stream} ({dtype})", _max(dtype))
    return ProvenRows(index, values, n_rows)


def _expected_index(
    prompts: Sequence[FinishedPrompt], expected: Sequence[tuple[np.ndarray, np.ndarray]]
) -> RowIndex:
    owner = [np.full(len(e[0]), p.prompt, dtype=np.int32) for p, e in zip(prompts, expected, strict=True)]
    return RowIndex(*(_join(parts) for parts in (owner, [e[0] for e in expected], [e[1] for e in expected])))


def _join(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.empty(0, dtype=torch.int32)


def _keys(prompt: torch.Tensor, position: torch.Tensor) -> np.ndarray:
    keys: np.ndarray = (prompt.numpy().astype(np.int64) << 32) | position.numpy().astype(np.int64)
    return keys


def _choose(chunks: Sequence[Chunk], index: RowIndex, names: Mapping[int, str]) -> np.ndarray:
    """Return, for each expected row, its place in the concatenated chunks: int64 [n]."""
    wanted = _keys(index.prompt, index.position)
    if len(wanted) == 0:
        return np.empty(0, dtype=np.int64)
    if not chunks:
        raise ProofError(f"{_where(index, names, 0)}: no row came back")
    got = np.concatenate([_keys(chunk.prompt, chunk.position) for chunk in chunks])
    order = np.argsort(got, kind="stable")
    ordered = got[order]
    place = np.searchsorted(ordered, wanted)
    found = np.append(ordered, -1)[place] == wanted
    if not found.all():
        raise ProofError(f"{_where(index, names, int(np.argmin(found)))}: no row came back")
    doubled = np.append(ordered, -1)[place + 1] == wanted
    if doubled.any():
        raise ProofError(f"{_where(index, names, int(np.argmax(doubled)))}: more than one row came back")
    chosen: np.ndarray = order[place]
    read = torch.cat([chunk.token_id for chunk in chunks]).numpy()[chosen]
    wrong = read != index.token_id.numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ProofError(
            f"{_where(index, names, row)}: the row was computed from token {read[row]}, but the request has "
            f"token {int(index.token_id[row])} there"
        )
    return chosen


def _gather(parts: Sequence[torch.Tensor], chosen: np.ndarray, out: torch.Tensor) -> None:
    """Put rows `chosen` of the joined parts, [n_layers, n, ...], into `out`; the parts are never joined."""
    stops = np.cumsum([part.shape[1] for part in parts])
    owner = np.searchsorted(stops, chosen, side="right")
    for number in np.unique(owner):
        rows = np.flatnonzero(owner == number)
        offset = int(stops[number]) - parts[number].shape[1]
        out[:, torch.from_numpy(rows)] = parts[number][:, torch.from_numpy(chosen[rows] - offset)]


def _max(dtype: str) -> float:
    return float(torch.finfo(DTYPES[dtype]).max)


def _check_peaks(
    peaks: torch.Tensor,
    index: RowIndex,
    names: Mapping[int, str],
    layer_ids: Sequence[int],
    stored: str,
    largest: float,
) -> None:
    """Refuse rows whose largest absolute value is not a finite, non-zero number that the dtype can hold."""
    good = (peaks > 0) & (peaks <= largest)
    if bool(good.all()):
        return
    layer, row = (int(i) for i in torch.nonzero(~good)[0])
    peak = float(peaks[layer, row])
    if peak == 0:
        fault = "the row is all zeros"
    elif peak < float("inf"):
        fault = f"its largest value {peak:.6g} overflows the storage dtype; store it in a wider one"
    else:
        fault = "the row holds NaN or infinity"
    raise ProofError(f"{_where(index, names, row)}, layer {layer_ids[layer]}, {stored}: {fault}")


def _where(index: RowIndex, names: Mapping[int, str], row: int) -> str:
    prompt = int(index.prompt[row])
    return f"prompt {prompt} ({names[prompt]}), position {int(index.position[row])}"
