"""A run folder and its model in, a VerifyReport out. Knows which rows to compare, not how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.model_facts import read_model_facts
from easysteer_data.shards import Run, open_run
from easysteer_data.types import Stream
from easysteer_data.verify.bounds import Bounds, bounds_of
from easysteer_data.verify.comparison import Comparison, compare, concatenate
from easysteer_data.verify.reference import Reference
from easysteer_data.verify.report import Agreement, LayerResult, VerifyReport

_STREAM: Stream = "hidden_states"


@dataclass(frozen=True, slots=True)
class _SampledPrompt:
    """A prompt that is run again.

    Attributes:
        name: id and source, for messages.
        token_ids: prompt and completion.
        rows: int64 [n], numbers of its rows in the run.
        positions: int64 [n], of these rows.
    """

    name: str
    token_ids: tuple[int, ...]
    rows: torch.Tensor
    positions: torch.Tensor


def verify_run(run_path: Path | str, *, model: str, n: int = 32, seed: int = 0) -> VerifyReport:
    """Run sampled prompts of a finished run again, by Hugging Face on the CPU, and compare all their rows.

    Every stored layer is compared. Needs no engine.

    Args:
        run_path: the run's folder.
        model: folder of the model that made the rows.
        n: prompts to sample, of those that have rows; all where there are fewer.
        seed: of the sample: the same seed takes the same prompts.

    Returns:
        The figures. Rows that do not match make a report that has not passed, not an error.

    Raises:
        RunError: the run can't be read, another model made it, or it holds what can't be compared.
        SettingsError: `model` is no model folder, or `n` or `seed` can't be used.
    """
    if n < 1 or seed < 0:
        raise SettingsError(f"verify.n must be at least 1 and verify.seed at least 0, found {n} and {seed}")
    run = open_run(run_path)
    _refuse_other_model(run, model)
    if set(run.streams) != {_STREAM}:
        raise RunError(f"{run.path}: verify compares {_STREAM} only, the run holds {', '.join(run.streams)}")
    header = run.manifest.header
    model_dtype, storage_dtype = str(header.model.get("dtype")), header.streams[_STREAM].dtype
    bounds = bounds_of(model_dtype, storage_dtype)
    sample = _sample(run, n, seed)
    comparison = _compare(run, sample, Reference(model, model_dtype))
    return VerifyReport(
        run=str(run.path),
        model=str(header.model.get("name")),
        dtypes={_STREAM: f"model in {model_dtype}, rows stored in {storage_dtype}"},
        bounds={_STREAM: bounds},
        layers=_layer_results(run.layer_ids(_STREAM), sample, comparison, bounds),
        n_prompts=len(sample),
        n_rows=len(comparison.cosine),
    )


def _refuse_other_model(run: Run, model: str) -> None:
    made_by = run.manifest.header.model
    expected, found = made_by.get("sha256"), read_model_facts(model).fingerprint
    if not isinstance(expected, Mapping):
        raise RunError(f"{run.path}: does not say which model made it, so that it can't be verified")
    other = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if other:
        raise RunError(
            f"{run.path}: {model} is not the model that made it, {made_by.get('name')!r}: "
            f"{', '.join(other)} differ; give that model's folder as model.path"
        )


def _sample(run: Run, n: int, seed: int) -> list[_SampledPrompt]:
    index = run.index
    with_rows = np.unique(index.prompt.numpy())
    if not len(with_rows):
        raise RunError(f"{run.path}: holds no row to verify")
    n = min(n, len(with_rows))
    chosen = np.sort(np.random.default_rng(seed).choice(with_rows, n, replace=False))
    records = run.prompts(["id", "source", "token_ids", "generated_token_ids"]).take(chosen).to_pylist()
    sample = []
    for prompt, record in zip(chosen.tolist(), records, strict=True):
        start, stop = (int(torch.searchsorted(index.prompt, prompt, side=side)) for side in ("left", "right"))
        rows = torch.arange(start, stop)
        name = f"prompt {record['id']} ({record['source']})"
        token_ids = (*record["token_ids"], *record["generated_token_ids"])
        sample.append(_SampledPrompt(name, token_ids, rows, index.position[rows].long()))
        _check_tokens(sample[-1], index.token_id[rows].tolist())
    return sample


def _check_tokens(prompt: _SampledPrompt, token_ids: Sequence[int]) -> None:
    for position, token_id in zip(prompt.positions.tolist(), token_ids, strict=True):
        if prompt.token_ids[position : position + 1] != (token_id,):
            raise RunError(
                f"{prompt.name}, position {position}: its row says token {token_id}, the prompt table "
                f"{prompt.token_ids[position] if position < len(prompt.token_ids) else 'no token'}"
            )


def _compare(run: Run, sample: Sequence[_SampledPrompt], reference: Reference) -> Comparison:
    layer_ids = run.layer_ids(_STREAM)
    return concatenate(
        [
            compare(
                run.gather(_STREAM, layer_ids, prompt.rows),
                layer_ids,
                reference.block_states(prompt.token_ids, prompt.positions),
            )
            for prompt in sample
        ]
    )


def _layer_results(
    layer_ids: Sequence[int], sample: Sequence[_SampledPrompt], comparison: Comparison, bounds: Bounds
) -> tuple[LayerResult, ...]:
    positions = torch.cat([prompt.positions for prompt in sample])
    names = [prompt.name for prompt in sample for _ in prompt.rows]
    later = positions >= 1
    results = []
    for column, layer_id in enumerate(layer_ids):
        cosine, relative = comparison.cosine[:, column], comparison.relative[:, column]
        excess = bounds.excess(cosine, relative)
        worst = int(excess.argmax())
        results.append(
            LayerResult(
                stream=_STREAM,
                layer_id=layer_id,
                later=_agreement(cosine[later], relative[later]),
                first=_agreement(cosine[~later], relative[~later]),
                matches=layer_id + _common_shift(comparison.shift[later, column]),
                excess=float(excess[worst]),
                worst=f"{names[worst]}, position {positions[worst]}: cosine {cosine[worst]:.7f}, "
                f"relative difference {relative[worst]:.1e}",
            )
        )
    return tuple(results)


def _agreement(cosine: torch.Tensor, relative: torch.Tensor) -> Agreement | None:
    return Agreement(float(cosine.min()), float(relative.max())) if len(cosine) else None


def _common_shift(shift: torch.Tensor) -> int:
    """The neighbour that most rows are nearer to, 0 where there is none."""
    for step in (-1, 1):
        if (shift == step).sum() > len(shift) / 2:
            return step
    return 0
