"""The axis along which differences vary most: a principal component through the origin. Knows no class."""

from __future__ import annotations

import torch


def principal_axes(differences: torch.Tensor) -> torch.Tensor:
    """First principal axis of each layer's differences taken with both signs, float64 [layers, width].

    With both signs their mean is zero, so that what all of them share counts and is not centred away.

    Args:
        differences: float64 [n, layers, width], n >= 1.
    """
    by_layer = differences.transpose(0, 1)
    n_rows, width = by_layer.shape[1:]
    if n_rows >= width:
        axes: torch.Tensor = torch.linalg.eigh(by_layer.mT @ by_layer).eigenvectors[..., -1]
        return axes
    # The smaller of the two Gram matrices has the same largest eigenvalue.
    weights = torch.linalg.eigh(by_layer @ by_layer.mT).eigenvectors[..., -1:]
    return torch.nn.functional.normalize((by_layer.mT @ weights).squeeze(-1), dim=-1)
