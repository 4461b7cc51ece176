"""Writes a steering vector as plain numpy arrays, for tools that know nothing else. Reads none."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from easysteer_data.shards.durable import make_folder, write_durably
from easysteer_data.vectors.steering_vector import SteeringVector


def export_npy(vector: SteeringVector, folder: Path | str) -> list[Path]:
    """Write `layer-012.npy` for each layer, float32 [width]: direction times scale.

    Args:
        vector: the vector.
        folder: where; it is made.

    Returns:
        The files, by layer.
    """
    folder = Path(folder)
    make_folder(folder)
    paths = []
    for layer_id in vector.layer_ids:
        data = io.BytesIO()
        np.save(data, vector.step(layer_id).numpy(), allow_pickle=False)
        paths.append(folder / f"layer-{layer_id:03d}.npy")
        write_durably(paths[-1], data.getvalue())
    return paths
