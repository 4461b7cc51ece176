"""GGUF control vectors, as llama.cpp, repeng and EasySteer read and write them. Only file that knows `gguf`.

Their `direction.N` belongs to the 0-based decoder block N, to whose output it is added: N is our layer id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.vectors.steering_vector import SteeringVector, VectorProvenance
from easysteer_data.vectors.vector_file import provenance_json, provenance_of_json

_ARCHITECTURE = "controlvector"
_PROVENANCE = "easysteer_data.provenance"
_DIRECTION = re.compile(r"direction\.(0|[1-9][0-9]*)")
_FLOATS = ("F32", "F16", "F64")
_CONVENTION = "the output of decoder block layer_id (0-based), as GGUF control vectors count"


def export_gguf(vector: SteeringVector, path: Path | str, model_hint: str | None = None) -> None:
    """Write a control vector: `direction.N` float32 [width] is direction times scale, so that 1 is one step.

    Args:
        vector: the vector, of hidden states.
        path: the file, which appears whole or not at all; its folder is made.
        model_hint: architecture that repeng and llama.cpp call the model, such as "llama"; the provenance's
            name of the model by default.

    Raises:
        SettingsError: the package `gguf` is not installed, the vector has block 0, which llama.cpp refuses,
            or it is not one of hidden states.
    """
    gguf = _import_gguf()
    if vector.provenance.stream != "hidden_states":
        raise SettingsError(
            f"GGUF control vectors are added to hidden states, this one is of {vector.provenance.stream}"
        )
    if 0 in vector.directions:
        raise SettingsError(
            "llama.cpp refuses a control vector that has block 0; leave it out, as "
            "export_gguf(vector.at([layer for layer in vector.layer_ids if layer > 0]), ...)"
        )
    with TemporaryDirectory() as folder:  # the package writes to a name, and not durably
        written = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(written, _ARCHITECTURE)
        writer.add_string(f"{_ARCHITECTURE}.model_hint", model_hint or vector.provenance.model or "unknown")
        writer.add_uint32(f"{_ARCHITECTURE}.layer_count", len(vector.layer_ids))
        writer.add_string(_PROVENANCE, provenance_json(vector.provenance))
        for layer_id in vector.layer_ids:
            writer.add_tensor(f"direction.{layer_id}", vector.step(layer_id).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        make_folder(Path(path).parent)
        write_durably(Path(path), written.read_bytes())


def import_gguf(path: Path | str) -> SteeringVector:
    """Read a control vector; block 0, which some tools write, is kept, and directions of zeros are left out.

    What our own export wrote keeps its provenance; of other files it holds the model hint and, as settings,
    the file's `controlvector.*` values. Their fingerprint is None.

    Raises:
        SettingsError: the package `gguf` is not installed.
        RunError: there is no such file, or it holds no control vector.
    """
    gguf = _import_gguf()
    try:
        reader = gguf.GGUFReader(path)
        values = {name: entry.contents() for name, entry in reader.fields.items()}
        if values.get("general.architecture") != _ARCHITECTURE:
            raise RunError(
                f"{path}: is no control vector, its architecture is {values.get('general.architecture')!r}"
            )
        return SteeringVector.of_steps(dict(_steps(reader)), _provenance(values))
    # What the package raises on a damaged file depends on where the damage is.
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise RunError(f"{path}: can't be read as a GGUF control vector ({error})") from error


def _steps(reader: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Layer id -> float32 [width], copied out of the mapped file."""
    for tensor in reader.tensors:
        found = _DIRECTION.fullmatch(tensor.name)
        if found is None:
            raise ValueError(f"tensor {tensor.name!r} is no direction.N")
        if tensor.tensor_type.name not in _FLOATS or tensor.data.ndim != 1:
            raise ValueError(
                f"{tensor.name} must be a vector of {', '.join(_FLOATS)}, found {tensor.tensor_type.name} "
                f"{list(tensor.data.shape)}"
            )
        step = torch.from_numpy(np.array(tensor.data, dtype=np.float32))
        if not step.isfinite().all():
            raise ValueError(f"{tensor.name} is not finite")
        if step.any():
            yield int(found[1]), step


def _provenance(values: dict[str, Any]) -> VectorProvenance:
    if _PROVENANCE in values:
        return provenance_of_json(values[_PROVENANCE])
    prefix = f"{_ARCHITECTURE}."
    settings = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return replace(
        VectorProvenance(layer_convention=_CONVENTION),
        estimator=str(settings.pop("method", "")),
        model=str(settings.pop("model_hint", "")),
        settings=settings,
    )


def _import_gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise SettingsError(
            "GGUF control vectors need the package gguf; pip install 'easysteer-data[gguf]'"
        ) from error
    return gguf
