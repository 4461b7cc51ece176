"""How far a right row may be from Hugging Face's in float32, by the model's dtype and the storage dtype.

Measured on SmolLM2-135M's 30 layers against the same weights in float32, at positions >= 1, smallest cosine
and largest relative difference: float32 (vLLM) 0.9999995 and 2.2e-5; float16 and bfloat16 (Hugging Face in
them) 0.9995 and 0.053, 0.958 and 0.48. The narrow ones do worst on a bare space among words, at layer 10;
vLLM's bfloat16 rows of plain statements keep to 0.993. All rows of some layers lie within 0.95 of the layer
before, so that bounds which let every right bfloat16 row pass can't tell layers apart: rows are compared with
the layers beside their own too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from easysteer_data.errors import RunError

# What the engine's arithmetic may cost: 1 - cosine, relative difference.
_ARITHMETIC = {"float32": (1e-5, 1e-4), "float16": (2e-3, 0.1), "bfloat16": (0.07, 0.6)}
# What rounding to the storage dtype may cost beside it. An element is off by at most 2**-11 of itself in
# float16 and 2**-8 in bfloat16, which turns a row by such an angle: 1 - cosine is at most half its square.
_ROUNDING = {"float32": (0.0, 0.0), "float16": (0.0, 9e-4), "bfloat16": (1e-5, 5e-3)}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a row must keep to.

    Attributes:
        cosine: the smallest that passes.
        relative: the largest difference that passes, in units of the expected row's largest element.
    """

    cosine: float
    relative: float

    def __str__(self) -> str:
        return f"cosine >= {self.cosine:g}, relative difference <= {self.relative:g}"

    def excess(self, cosine: torch.Tensor, relative: torch.Tensor) -> torch.Tensor:
        """How far rows are off in units of the bounds, same shape; at most 1 passes, infinite where NaN."""
        off = torch.maximum((1 - cosine) / (1 - self.cosine), relative / self.relative)
        return off.nan_to_num(nan=torch.inf, posinf=torch.inf)


def bounds_of(model_dtype: str, storage_dtype: str) -> Bounds:
    """The bounds of a model's rows at rest.

    Raises:
        RunError: no bound is known for such a model.
    """
    if model_dtype not in _ARITHMETIC:
        raise RunError(
            f"verify knows no bound for a model in {model_dtype!r}, only in {', '.join(_ARITHMETIC)}"
        )
    turn, difference = (
        arithmetic + rounding
        for arithmetic, rounding in zip(_ARITHMETIC[model_dtype], _ROUNDING[storage_dtype], strict=True)
    )
    return Bounds(1 - turn, difference)
