"""What a probe has to beat: shuffled labels, the words of the prompt, the most frequent answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from easysteer_data.errors import SettingsError
from easysteer_data.probes.cross_moments import CrossMoments
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.kinds.ridge import RidgeProbe
from easysteer_data.probes.layer_result import Figures
from easysteer_data.probes.measure import Measurement
from easysteer_data.probes.minimise import minimise
from easysteer_data.probes.readout import Shape, with_reference

# Tokens whose counts the bag keeps: the most frequent of those that at least two training prompts have.
MAX_TOKENS = 2048
_ATTEMPTS = 100


def shuffled_labels(data: ProbeData, seed: int) -> torch.Tensor:
    """Labels of the run's prompts, those of the train split shuffled by group.

    Every group takes the labels of another one, in random order and as often as it has prompts: a group of
    one label has one label afterwards, and a pair of two classes stays one.

    Raises:
        SettingsError: no shuffle leaves every class with a prompt.
    """
    prompts, first = np.unique(data.prompts("train").numpy(), return_index=True)
    values = data.targets("train").numpy()[first]
    _, codes = np.unique(data.group_of_prompt.numpy()[prompts], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    rng = np.random.default_rng(seed)
    for _ in range(_ATTEMPTS):
        shuffled = np.empty_like(values)
        for group, donor in zip(groups, rng.permutation(len(groups)), strict=True):
            shuffled[group] = np.resize(rng.permutation(values[groups[donor]]), len(group))
        if not data.label_names or len(np.unique(shuffled)) == len(data.label_names):
            labels = torch.full((len(data.group_of_prompt),), -1, dtype=data.targets("train").dtype)
            for split in ("validation", "test"):
                labels[data.prompts(split)] = data.targets(split)
            labels[torch.from_numpy(prompts)] = torch.from_numpy(shuffled)
            return labels
    raise SettingsError(
        f"{_ATTEMPTS} shuffles of {len(groups)} groups' labels all lost a class; use probe.control=false"
    )


def majority(data: ProbeData, measurement: Measurement) -> Figures:
    """Test figures of the train split's shares of classes, or of its mean number."""
    target = data.targets("train")
    if data.task == "numeric":
        constant = target.double().mean().view(1, 1)
    else:
        shares = torch.bincount(target, minlength=len(data.label_names)).double() / len(target)
        constant = shares.log()[None]
    scores = constant.expand(len(data.targets("test")), -1)
    return measurement.figures("test", scores, lambda s: s.softmax(dim=-1))


def bag_of_tokens(data: ProbeData, C: float, measurement: Measurement) -> Figures | None:  # noqa: N803
    """Figures on the test split of a regression on token counts; None where the run has no token ids.

    Logistic for classes, ridge with alpha 1 / C for numbers; counts as they are, as bags of words are used.

    Args:
        data: the examples; rows of one prompt have the same counts.
        C: inverse strength of the L2 penalty.
        measurement: how figures are made.
    """
    table = data.datamodule.run.prompts(["token_ids"])["token_ids"]
    tokens = [np.asarray(ids, dtype=np.int64) for ids in table.to_pylist()]
    vocabulary = _vocabulary([tokens[p] for p in torch.unique(data.prompts("train")).tolist()])
    if len(vocabulary) == 0:
        return None
    counts = _counts(tokens, vocabulary)
    x, target = counts[data.prompts("train")], data.targets("train")
    held_out = counts[data.prompts("test")]
    if data.task == "numeric":
        ridge = RidgeProbe((0,), x.shape[1], alpha=1 / C)
        moments = CrossMoments.of_batches([{"x": x, "y": target}], 0)
        ridge.mean, ridge.std = moments.mean, moments.std
        ridge.weight[0], ridge.bias[0] = ridge.solve(moments, 0)
        return measurement.figures("test", ridge.score(held_out)[:, 0], ridge.chances)
    found = minimise(x, target, Shape(1, x.shape[1], len(data.label_names)).n_logits, C)
    scores = with_reference(held_out.double() @ found.weight.T + found.bias)
    return measurement.figures("test", scores, lambda s: s.softmax(dim=-1))


def _vocabulary(prompts: Sequence[np.ndarray]) -> np.ndarray:
    """Token ids, ascending."""
    present = np.concatenate([np.unique(ids) for ids in prompts])
    ids, n_prompts = np.unique(present, return_counts=True)
    often = np.flatnonzero(n_prompts >= 2)
    kept = often[np.argsort(-n_prompts[often], kind="stable")[:MAX_TOKENS]]
    vocabulary: np.ndarray = np.sort(ids[kept])
    return vocabulary


def _counts(tokens: Sequence[np.ndarray], vocabulary: np.ndarray) -> torch.Tensor:
    """How often each prompt has each token of the vocabulary, float32 [prompts, tokens]."""
    counts = np.zeros((len(tokens), len(vocabulary)), dtype=np.float32)
    for row, ids in zip(counts, tokens, strict=True):
        places = np.searchsorted(vocabulary, ids).clip(max=len(vocabulary) - 1)
        known = places[vocabulary[places] == ids]
        np.add.at(row, known, 1)
    return torch.from_numpy(counts)


def baselines(data: ProbeData, C: float, with_bag: bool, measurement: Measurement) -> Mapping[str, Figures]:  # noqa: N803
    """Figures on the test split of what does without activations, by name."""
    found = {"majority": majority(data, measurement)}
    bag = bag_of_tokens(data, C, measurement) if with_bag else None
    return found if bag is None else {**found, "bag_of_tokens": bag}
