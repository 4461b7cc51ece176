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
from easysteer_data.probes.contract import Probe
from easysteer_data.probes.kinds import probe_class
from easysteer_data.shards.durable import write_durably

FORMAT = "easysteer-data probe 2"


def save_probe(probe: Probe, path: Path, provenance: Mapping[str, str] | None = None) -> None:
    """Write a probe's tensors, and in the file's metadata its kind, layers, classes and settings.

    Every kind has `mean` and `std` [layers, width]. Of a linear one, `weight` [layers, logits, width] and
    `bias` [layers, logits] give `logits = weight @ ((row - mean) / std) + bias`.

    Args:
        probe: the probe.
        path: the file, which appears whole or not at all.
        provenance: more metadata, e.g. the run that the rows came from.
    """
    settings = json.dumps({"kind": probe.kind, **probe.settings}, sort_keys=True)
    metadata = {**(provenance or {}), "format": FORMAT, "probe": settings}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in probe.tensors().items()}
    write_durably(path, save(tensors, metadata))


def load_probe(path: Path) -> Probe:
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
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path}: can't be read as a probe ({error})") from error


def _probe(settings: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Probe:
    cls = probe_class(settings.pop("kind"))
    # Without memory at first: a made-up width in the settings would claim it.
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in cls(**settings).tensors().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != shapes:
        raise ValueError(f"settings and tensors differ: {shapes} by the settings, {found} in the file")
    probe = cls(**settings)
    probe.load_tensors(tensors)
    return probe
