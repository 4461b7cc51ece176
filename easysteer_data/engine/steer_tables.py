"""The buffers of steering, at fixed addresses, and the hooks that put the op behind each block.

Knows where a block's output is (`taps.py`); does not know requests or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from easysteer_data.engine.steer_combine import MAX_ERASES, Action
from easysteer_data.engine.steer_op import steer
from easysteer_data.engine.taps import SWITCH_WORDS, TapPoint
from easysteer_data.errors import SettingsError

_N_ROWS = 1024
_N_COMBOS = 256


class SteerTables:
    """What is done to which token: a combo is a set of vectors that act together, an Action a layer.

    Attributes:
        layer_ids: true layer ids, ascending.
        width: elements of a vector.

    Args:
        points: where each block's output passes.
        capacity: most tokens of a step.
        device: where the model is.
    """

    def __init__(self, points: Sequence[TapPoint], capacity: int, device: torch.device) -> None:
        self.layer_ids = tuple(point.layer_id for point in points)
        self.width = points[0].width
        n_layers = len(points)
        self._combos = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        self._switches = torch.zeros(n_layers, SWITCH_WORDS, dtype=torch.int32, device=device)
        self._vectors = torch.zeros(_N_ROWS, self.width, dtype=torch.float32, device=device)
        self._adds = torch.full((n_layers, _N_COMBOS), -1, dtype=torch.int32, device=device)
        self._reads = torch.full((n_layers, _N_COMBOS, MAX_ERASES), -1, dtype=torch.int32, device=device)
        self._writes = torch.full_like(self._reads, -1)
        self._rows: dict[bytes, int] = {}
        self._n_combos = 0
        for place, point in enumerate(points):
            self._attach(place, point)

    @property
    def capacity(self) -> int:
        """Most tokens of a step."""
        return len(self._combos)

    def switch_on(self, layer_ids: Collection[int]) -> None:
        """Steer at these layers, with no combo yet."""
        self.switch_off()
        wanted = torch.tensor([[int(layer_id in layer_ids)] for layer_id in self.layer_ids])
        self._switches[:, :1] = wanted.to(self._switches)

    def switch_off(self) -> None:
        """Make every op return at once, and forget all combos."""
        self._switches.zero_()
        self._combos.fill_(-1)
        self._rows.clear()
        self._n_combos = 0

    def add_combo(self, actions: Mapping[int, Action]) -> int:
        """Note what a combo does, layer id -> Action, and return its number.

        Raises:
            SettingsError: the tables are full.
        """
        combo = self._n_combos
        if combo == _N_COMBOS:
            raise SettingsError(
                f"steering needs more than {_N_COMBOS} sets of vectors that act together; steer fewer prompts"
                " of different specs at a time"
            )
        shape = (len(self.layer_ids), 1 + 2 * MAX_ERASES)
        index = torch.full(shape, -1, dtype=torch.int32)
        for layer_id, action in actions.items():
            of_layer = index[self.layer_ids.index(layer_id)]
            if action.added is not None:
                of_layer[0] = self._row(action.added)
            for k, (read, write) in enumerate(zip(action.reads, action.writes, strict=True)):
                of_layer[1 + k], of_layer[1 + MAX_ERASES + k] = self._row(read), self._row(write)
        self._adds[:, combo] = index[:, 0].to(self._adds.device)
        self._reads[:, combo] = index[:, 1 : 1 + MAX_ERASES].to(self._adds.device)
        self._writes[:, combo] = index[:, 1 + MAX_ERASES :].to(self._adds.device)
        self._n_combos += 1
        return combo

    def _row(self, vector: torch.Tensor) -> int:
        """The vector's row in the table; equal vectors share one."""
        content = vector.numpy().tobytes()
        row = self._rows.get(content)
        if row is None:
            row = len(self._rows)
            if row == _N_ROWS:
                raise SettingsError(
                    f"steering needs more than {_N_ROWS} different vectors, counted by layer; steer at fewer "
                    "layers, or fewer prompts of different specs at a time"
                )
            self._vectors[row].copy_(vector)
            self._rows[content] = row
        return row

    def place(self, combos: np.ndarray) -> None:
        """Say what is done to each token of the next forward pass; int32 [capacity], -1 = nothing."""
        source = torch.from_numpy(combos)
        if self._combos.device.type == "cpu":
            self._combos.copy_(source)
        else:  # from pinned memory of its own, so that the host need not wait for steps in flight
            self._combos.copy_(source.pin_memory(), non_blocking=True)

    def _attach(self, place: int, point: TapPoint) -> None:
        tables = (self._adds[place], self._reads[place], self._writes[place])
        switch, width = self._switches[place, :1], self.width

        def after(
            _module: nn.Module, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]
        ) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            # Of a pair (hidden, residual) the next block's fused norm makes the sum.
            older = output[1] if isinstance(output, tuple) and point.reads == "sum" else None
            residual = None if older is None else older.view(-1, width)
            steer(hidden.view(-1, width), residual, self._combos, switch, self._vectors, *tables)

        _register_first(point.module, after)


def _register_first(module: nn.Module, hook: Callable[..., None]) -> None:
    """Register a forward hook before all others: the taps' rows are then steered ones.

    torch's own `prepend` reorders a dict in a way that torch.compile of torch 2.11 does not see: it takes one
    hook's closure for another's.
    """
    later = dict(module._forward_hooks)
    module._forward_hooks.clear()
    module.register_forward_hook(hook)
    module._forward_hooks.update(later)
