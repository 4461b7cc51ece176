"""What every estimator of a direction is: train rows in, a vector a layer out. Knows none of them."""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar, Protocol

import torch

from easysteer_data.vectors.contrast import Contrast


class Estimator(Protocol):
    """Finds the direction from the negative to the positive class; a frozen dataclass of its settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, contrast: Contrast) -> torch.Tensor:
        """The vector of every layer, float64 [layers, width].

        It points to the positive class and is as long as the step between the classes along it.

        Raises:
            RunError: the rows do not have what the estimator needs, such as pairs.
        """
