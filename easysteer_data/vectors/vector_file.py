"""A steering vector on disk: one safetensors file of tensors and what they mean. Reading it runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.vectors.steering_vector import SteeringVector, VectorProvenance

FORMAT = "easysteer-data steering vector 1"


def save_vector(vector: SteeringVector, path: Path) -> None:
    """Write `layer_id` int64 [L], `direction` float32 [L, width] and `scale` float64 [L].

    Its metadata holds `format`, and `provenance`: a JSON object of VectorProvenance's attributes.

    Args:
        vector: the vector.
        path: the file, which appears whole or not at all; its folder is made.
    """
    tensors = {
        "layer_id": torch.tensor(vector.layer_ids, dtype=torch.int64),
        "direction": torch.stack(list(vector.directions.values())),
        "scale": torch.tensor(list(vector.scales.values()), dtype=torch.float64),
    }
    metadata = {"format": FORMAT, "provenance": provenance_json(vector.provenance)}
    make_folder(path.parent)
    write_durably(path, save(tensors, metadata))


def load_vector(
    path: Path | str,
    *,
    model_fingerprint: str | None = None,
    width: int | None = None,
    force: bool = False,
) -> SteeringVector:
    """Read a vector that `save_vector` wrote.

    Args:
        path: the file.
        model_fingerprint: of the model that it is for, see `steering_vector.model_fingerprint`; None = any.
        width: of that model's rows; None = any.
        force: load it for another model all the same.

    Raises:
        RunError: there is no such file, or it holds no such vector.
        SettingsError: it was made for another model; the message tells both.
    """
    path = Path(path)
    vector = _read(path)
    if not force:
        try:
            vector.check_fits(model_fingerprint, vector.width if width is None else width)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from error
    return vector


def provenance_json(provenance: VectorProvenance) -> str:
    """The provenance as one JSON object."""
    return json.dumps(asdict(provenance), sort_keys=True)


def provenance_of_json(text: str) -> VectorProvenance:
    """Read it back; ValueError or TypeError on anything else."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise TypeError("the provenance is no JSON object")
    # Keys that a later version may add are no reason not to steer.
    known = {f.name for f in fields(VectorProvenance)}
    return VectorProvenance(**{key: value for key, value in values.items() if key in known})


def _read(path: Path) -> SteeringVector:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - is no mapping
        if metadata.get("format") != FORMAT:
            raise RunError(
                f"{path}: is no steering vector, its format is {metadata.get('format')!r}, not {FORMAT!r}"
            )
        return _vector(tensors, provenance_of_json(metadata["provenance"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: can't be read as a steering vector ({error})") from error


def _vector(tensors: Mapping[str, torch.Tensor], provenance: VectorProvenance) -> SteeringVector:
    layer_ids, directions, scales = (tensors[name] for name in ("layer_id", "direction", "scale"))
    if layer_ids.dtype != torch.int64 or len(set(layer_ids.flatten().tolist())) != layer_ids.numel():
        raise ValueError("layer_id must hold different int64 numbers")
    if directions.ndim != 2 or layer_ids.shape != scales.shape or layer_ids.shape != directions.shape[:1]:
        raise ValueError(
            f"layer_id {list(layer_ids.shape)}, direction {list(directions.shape)} and scale "
            f"{list(scales.shape)} do not fit each other"
        )
    ids = layer_ids.tolist()
    return SteeringVector(
        dict(zip(ids, directions, strict=True)), dict(zip(ids, scales.tolist(), strict=True)), provenance
    )
