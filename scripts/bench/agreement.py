"""How far two sets of rows agree."""

from __future__ import annotations

import torch


def compare(rows: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Cosine and largest difference relative to the row's largest value."""
    a, b = rows.float(), expected.float()
    relative = (a - b).abs().amax(-1) / b.abs().amax(-1)
    return {
        "min_cosine": float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min()),
        "max_relative": float(relative.max()),
        "median_relative": float(relative.median()),
        "within_1_percent": float((relative < 0.01).float().mean()),
    }
