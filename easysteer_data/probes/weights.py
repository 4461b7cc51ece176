"""A trained probe on disk: one safetensors file of tensors and what they mean. Reading it runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from easysteer_data.errors import RunError
from easysteer_data.probes.linear import LinearProbe
from easysteer_data.shards.durable import write_durably

FORMAT = "easysteer-data linear probe 1"


def save_probe(probe: LinearProbe, path: Path, provenance: Mapping[str, str] | None = None) -> None:
    """Write a probe's tensors, and in the file's metadata its layers, classes and settings.

    `weight` [layers, logits, width], `bias` [layers, logits], `mean` and `std` [layers, width] give
    `logits = weight @ ((row - mean) / std) + bias`; `n_train` counts the rows of the train split.

    Args:
        probe: the probe.
        path: the file, which appears whole or not at all.
        provenance: more metadata, e.g. the run that the rows came from.
    """
    logistic = probe.logistic
    tensors = {
        "weight": torch.stack(list(logistic.weights)),
        "bias": torch.stack(list(logistic.biases)),
        "mean": logistic.mean,
        "std": logistic.std,
        "n_train": logistic.n_train,
    }
    settings = json.dumps(dict(probe.hparams), sort_keys=True)
    metadata = {**(provenance or {}), "format": FORMAT, "probe": settings}
    write_durably(path, save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, metadata))


def load_probe(path: Path) -> LinearProbe:
    """Read a probe that `save_probe` wrote.

    Raises:
        RunError: there is no such file, or it holds no such probe.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - is no mapping
        if metadata.get("format") != FORMAT:
            raise RunError(f"{path}: is no probe, its format is {metadata.get('format')!r}, not {FORMAT!r}")
        return _probe(json.loads(metadata["probe"]), tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path}: can't be read as a probe ({error})") from error


def _probe(settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> LinearProbe:
    # The tensors' own sizes come first: a made-up width in the settings would claim memory.
    if [len(settings["layer_ids"]), settings["width"]] != list(tensors["mean"].shape):
        raise ValueError(
            f"settings and tensors differ in size: {settings}, mean {list(tensors['mean'].shape)}"
        )
    probe = LinearProbe(**settings)
    state = {name: tensors[name] for name in ("mean", "std", "n_train")}
    for name, stacked in (("weights", tensors["weight"]), ("biases", tensors["bias"])):
        state |= {f"{name}.{layer}": values for layer, values in enumerate(stacked)}
    probe.logistic.load_state_dict(state)
    return probe.eval()
