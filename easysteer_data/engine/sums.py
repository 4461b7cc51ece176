"""Adds up prompts' rows on the worker, so that a mean over any number of chunks needs one row of memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from easysteer_data.engine.wire import Sums
from easysteer_data.types import Stream


class RunningSums:
    """Sums of rows by prompt and stream, in float64."""

    def __init__(self) -> None:
        self._sums: dict[Stream, dict[int, torch.Tensor]] = {}

    def add(self, prompts: np.ndarray, rows: Mapping[Stream, torch.Tensor]) -> None:
        """Add rows [n_layers, n, width] of prompts [n]."""
        names, owner = np.unique(prompts, return_inverse=True)
        index = torch.from_numpy(owner)
        for stream, values in rows.items():
            n_layers, _, width = values.shape
            parts = values.new_zeros(n_layers, len(names), width, dtype=torch.float64)
            parts.index_add_(1, index.to(values.device), values.double())
            known = self._sums.setdefault(stream, {})
            for name, part in zip(names.tolist(), parts.unbind(1), strict=True):
                known[name] = known[name] + part if name in known else part

    def take(self) -> Sums | None:
        """Return the sums so far and start again; None if nothing was added."""
        sums, self._sums = self._sums, {}
        if not sums:
            return None
        names = list(next(iter(sums.values())))
        values = {stream: torch.stack([s[name] for name in names], dim=1).cpu() for stream, s in sums.items()}
        return Sums(torch.tensor(names, dtype=torch.int32), values)
