"""Turns chunks into rows in order, and proves each one: none missing, doubled, mislabelled, empty or broken.

Pure numpy and torch. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch

from easysteer_data.engine.copy_rows import copy_rows
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.wire import DTYPES, Chunk, StreamShape, Sums
from easysteer_data.errors import ProofError, SettingsError
from easysteer_data.select import SelectSpec
from easysteer_data.types import Gates, Reduce, RowIndex, Stream

_FAULTS = {
    "all_zero": "the row is all zeros",
    "overflow": "its largest value {peak:.6g} overflows the storage dtype; store it in a wider one",
    "not_finite": "the row holds NaN or infinity",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded: chunks of rows, and partial sums where rows are reduced to their mean."""

    chunks: Sequence[Chunk]
    sums: Sequence[Sums] = ()


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

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Return int32 (positions, token ids) of the rows that must be there."""
        whole_prompt, whole_generation = (
            (True, True) if self.select is None else (self.select.whole_prompt, self.select.whole_generation)
        )
        # Of a phase of which nothing is wanted no token need be looked at.
        first = len(self.prompt_token_ids) if whole_prompt is False else 0
        read = [] if whole_prompt is False else self.prompt_token_ids
        if whole_generation is not False:
            read = [*read, *self.generated_token_ids[:-1]]
        tokens = np.array(read, dtype=np.int32)
        positions = np.arange(first, first + len(tokens), dtype=np.int32)
        if self.select is not None and (whole_prompt is None or whole_generation is None):
            mask = self.select.mask(len(self.prompt_token_ids), first, tokens)
            positions, tokens = positions[mask], tokens[mask]
        return positions, tokens


@dataclass(frozen=True, slots=True)
class ProvenRows:
    """Rows that passed every gate, in order of (prompt, position).

    Attributes:
        index: labels of the rows.
        values: stream -> a contiguous Tensor [n, width] a layer, layers as ordered.
        n_rows: rows of each prompt, as the prompts were given.
        gates: fault -> rows and layers that have it; empty unless faults are counted.
    """

    index: RowIndex
    values: Mapping[Stream, Sequence[torch.Tensor]]
    n_rows: tuple[int, ...]
    gates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """What rows are held to.

    Attributes:
        shapes: stream -> its layers, in the chunks' order, its width and the rows' dtype.
        reduce: "last" or "mean" of each prompt's rows, None = all of them.
        gates: "raise" stops at the first row whose values are wrong, "count" counts such rows.
    """

    shapes: Mapping[Stream, StreamShape]
    reduce: Reduce | None = None
    gates: Gates = "raise"

    def __post_init__(self) -> None:
        if self.gates not in get_args(Gates):
            raise SettingsError(f"gates is {self.gates!r}; choose raise or count")


def prove(recorded: Recorded, prompts: Sequence[FinishedPrompt], rules: Rules) -> ProvenRows:
    """Order the recorded rows as the prompts are given and check every one.

    Args:
        recorded: everything that may hold rows of these prompts.
        prompts: finished prompts, ascending by index.
        rules: what the rows are held to.

    Raises:
        ProofError: names the prompt, the layer and the position of the first row that is wrong.
    """
    chunks = recorded.chunks
    index, n_rows = expected_rows(prompts, rules.reduce)
    names = {prompt.prompt: prompt.name for prompt in prompts}
    chosen = _choose(chunks, index, names)
    gates: Counter[str] = Counter()
    values: dict[Stream, Sequence[torch.Tensor]] = {}
    for stream, shape in rules.shapes.items():
        peaks = _peaks([chunk.peaks[stream] for chunk in chunks], chosen, len(shape.layer_ids))
        gates += _check_peaks(peaks, index, names, stream, rules)
        if rules.reduce != "mean":
            values[stream] = _gathered([chunk.values[stream] for chunk in chunks], chosen, shape)
    if rules.reduce == "mean":
        values = _means(recorded, prompts, index, n_rows, rules)
        index, n_rows = _last_of_each(index, n_rows), np.minimum(n_rows, 1)
    return ProvenRows(index, values, tuple(n_rows.tolist()), dict(gates))


def expected_rows(
    prompts: Sequence[FinishedPrompt], reduce: Reduce | None = None
) -> tuple[RowIndex, np.ndarray]:
    """Labels of the rows that must be recorded of these prompts, and how many of each: int64 [n_prompts]."""
    expected = [prompt.expected() for prompt in prompts]
    if reduce == "last":
        expected = [(positions[-1:], tokens[-1:]) for positions, tokens in expected]
    n_rows = np.array([len(positions) for positions, _ in expected], dtype=np.int64)
    owner = np.repeat(np.array([prompt.prompt for prompt in prompts], dtype=np.int32), n_rows)
    columns = [owner, *(_join([e[i] for e in expected]) for i in range(2))]
    return RowIndex(*(torch.from_numpy(column) for column in columns)), n_rows


def _means(
    recorded: Recorded,
    prompts: Sequence[FinishedPrompt],
    index: RowIndex,
    n_rows: np.ndarray,
    rules: Rules,
) -> dict[Stream, Sequence[torch.Tensor]]:
    """Mean of each prompt's rows, for the prompts that have any; [prompts, width] a layer.

    The sums hold the rows of prompt tokens; those of generated tokens came one by one.
    """
    wanted = [prompt.prompt for prompt, n in zip(prompts, n_rows, strict=True) if n]
    place = {prompt: i for i, prompt in enumerate(wanted)}
    lengths = np.repeat([len(prompt.prompt_token_ids) for prompt in prompts], n_rows)
    generated = torch.from_numpy(np.flatnonzero(index.position.numpy() >= lengths))
    rows = RowIndex(index.prompt[generated], index.position[generated], index.token_id[generated])
    owner = torch.tensor([place[prompt] for prompt in rows.prompt.tolist()], dtype=torch.int64)
    chunks = [chunk for chunk in recorded.chunks if len(next(iter(chunk.values.values()))[0])]
    chosen = _choose(chunks, rows, {prompt.prompt: prompt.name for prompt in prompts})
    count = torch.from_numpy(n_rows[n_rows > 0]).double()
    means: dict[Stream, Sequence[torch.Tensor]] = {}
    for stream, shape in rules.shapes.items():
        total = torch.zeros(len(shape.layer_ids), len(wanted), shape.width, dtype=torch.float64)
        for part in recorded.sums:
            ours = [i for i, prompt in enumerate(part.prompt.tolist()) if prompt in place]
            places = torch.tensor([place[int(part.prompt[i])] for i in ours], dtype=torch.int64)
            total.index_add_(1, places, part.values[stream][:, ours])
        values = _gathered([chunk.values[stream] for chunk in chunks], chosen, shape)
        for layer, more in zip(total, values, strict=True):
            layer.index_add_(0, owner, more.double())
        means[stream] = list((total / count[:, None]).to(DTYPES[shape.dtype]))
    return means


def _last_of_each(index: RowIndex, n_rows: np.ndarray) -> RowIndex:
    """The label of a mean is that of its last row."""
    last = torch.from_numpy((np.cumsum(n_rows) - 1)[n_rows > 0])
    return RowIndex(index.prompt[last], index.position[last], index.token_id[last])


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


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
    chosen = _places(chunks, wanted, index, names)
    read = chunks[0].token_id if len(chunks) == 1 else torch.cat([chunk.token_id for chunk in chunks])
    tokens = read.numpy()[chosen]
    wrong = tokens != index.token_id.numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ProofError(
            f"{_where(index, names, row)}: the row was computed from token {tokens[row]}, but the request "
            f"has token {int(index.token_id[row])} there"
        )
    return chosen


def _places(
    chunks: Sequence[Chunk], wanted: np.ndarray, index: RowIndex, names: Mapping[int, str]
) -> np.ndarray:
    """Where the one row of each wanted key is in the concatenated chunks."""
    got = np.concatenate([_keys(chunk.prompt, chunk.position) for chunk in chunks])
    if np.array_equal(got, wanted):  # in order already, each once: the keys of an index ascend
        return np.arange(len(wanted))
    order = np.argsort(got, kind="stable")
    ordered = got[order]
    place = np.searchsorted(ordered, wanted)
    found = np.append(ordered, -1)[place] == wanted
    if not found.all():
        raise ProofError(f"{_where(index, names, int(np.argmin(found)))}: no row came back")
    doubled = np.append(ordered, -1)[place + 1] == wanted
    if doubled.any():
        raise ProofError(f"{_where(index, names, int(np.argmax(doubled)))}: more than one row came back")
    places: np.ndarray = order[place]
    return places


def _peaks(parts: Sequence[torch.Tensor], chosen: np.ndarray, n_layers: int) -> torch.Tensor:
    """Rows `chosen` of the joined parts, [n_layers, n]; a single part in order is not copied."""
    if not parts:
        return torch.empty(n_layers, 0)
    peaks = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
    in_order = np.array_equal(chosen, np.arange(peaks.shape[1]))
    return peaks if in_order else peaks[:, torch.from_numpy(chosen)]


def _gathered(
    parts: Sequence[Sequence[torch.Tensor]], chosen: np.ndarray, shape: StreamShape
) -> Sequence[torch.Tensor]:
    """Rows `chosen` of each layer's joined parts, contiguous; a single part in order is not copied."""
    n_rows = [len(layers[0]) for layers in parts]
    in_order = len(parts) == 1 and np.array_equal(chosen, np.arange(n_rows[0]))
    if in_order and all(layer.is_contiguous() for layer in parts[0]):
        return parts[0]
    out = HostMemory(0).empty((len(shape.layer_ids), len(chosen), shape.width), DTYPES[shape.dtype])
    stops = np.cumsum(n_rows)
    owner = np.searchsorted(stops, chosen, side="right")
    for number in np.unique(owner):
        rows = np.flatnonzero(owner == number)
        offset = int(stops[number]) - n_rows[number]
        copy_rows(parts[number], chosen[rows] - offset, out, rows)
    return list(out)


def _check_peaks(
    peaks: torch.Tensor, index: RowIndex, names: Mapping[int, str], stream: Stream, rules: Rules
) -> Counter[str]:
    """Refuse rows whose largest absolute value is not a finite, non-zero number that the dtype can hold."""
    shape = rules.shapes[stream]
    largest = float(torch.finfo(DTYPES[shape.dtype]).max)
    # By numpy: torch would share so little work among threads, which costs more than it saves.
    good = (peaks.numpy() > 0) & (peaks.numpy() <= largest)
    if good.all():
        return Counter()
    faults = {
        "all_zero": peaks == 0,
        "overflow": (peaks > largest) & peaks.isfinite(),
        "not_finite": ~peaks.isfinite(),
    }
    if rules.gates == "count":
        return Counter({name: int(mask.sum()) for name, mask in faults.items()})
    layer, row = (int(i) for i in np.argwhere(~good)[0])
    fault = next(name for name, mask in faults.items() if mask[layer, row])
    raise ProofError(
        f"{_where(index, names, row)}, layer {shape.layer_ids[layer]}, {stream} ({shape.dtype}): "
        + _FAULTS[fault].format(peak=float(peaks[layer, row]))
    )


def _where(index: RowIndex, names: Mapping[int, str], row: int) -> str:
    prompt = int(index.prompt[row])
    return f"prompt {prompt} ({names[prompt]}), position {int(index.position[row])}"
