"""How far rows may be from Hugging Face's in float32, by the model's dtype and the storage dtype."""

from __future__ import annotations

from easysteer_data.errors import RunError
from easysteer_data.verify.report import Bounds


def bounds_of(model_dtype: str, storage_dtype: str) -> Bounds:
    return Bounds(1 - 1e-5, 1e-4)
