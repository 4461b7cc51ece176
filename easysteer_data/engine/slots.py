"""Gives the wanted tokens of a step their slots in the taps' buffers, before the forward pass."""

from __future__ import annotations

import numpy as np
import torch

from easysteer_data.engine.lane import Lane


class StepSlots:
    """The slot map that all taps read.

    Attributes:
        slot_map: int32 [max_tokens], each token's slot, -1 = not wanted.
        n_slots: slots in all; the buffers are filled in turn.
        max_tokens: slots of a buffer.

    Args:
        max_tokens: tokens in one step at most.
        device: the worker's device.
        lane: the way to it.
    """

    def __init__(self, max_tokens: int, device: torch.device, lane: Lane) -> None:
        self._lane = lane
        self.max_tokens = max_tokens
        self._n_used = 0  # of the buffer that is being filled
        self.n_slots = lane.n_buffers * max_tokens
        self.slot_map = torch.full((max_tokens,), -1, dtype=torch.int32, device=device)
        self._places = torch.empty(max_tokens, dtype=torch.int64, device=device)
        self._slots = np.full(max_tokens, -1, dtype=np.int32)  # the map's copy on the host
        self._placed = np.empty(0, dtype=np.int64)
        self._token_ids = torch.empty(self.n_slots, dtype=torch.int32, device=device)
        self._buffer = 0
        self._is_clear = True

    def place(self, tokens: np.ndarray, input_ids: torch.Tensor, *, beside: bool = False) -> int:
        """Give the tokens slots in a row and return the first one.

        Args:
            tokens: int64 [n], places in the flat batch, ascending.
            input_ids: [>= n_tokens] on the device, the tokens that the model reads.
            beside: use the slots behind those given last, which are still needed; else the next buffer.
        """
        n = len(tokens)
        if n == 0:
            self.clear()
            return 0
        if not beside:
            self._buffer = (self._buffer + 1) % self._lane.n_buffers
            self._lane.before_step(self._buffer)
            self._n_used = 0
        first = self._buffer * self.max_tokens + self._n_used
        self._n_used += n
        n_changed = 1 + int(max(tokens[-1], self._placed[-1] if len(self._placed) else 0))
        self._slots[self._placed] = -1
        self._slots[tokens] = np.arange(first, first + n, dtype=np.int32)
        self._placed = tokens
        self._lane.upload(self._slots[:n_changed], self.slot_map)
        # Copied now: vLLM writes the next step's tokens over them.
        if tokens[-1] == n - 1:  # they ascend, so these are all that there are
            chosen = input_ids[:n]
        else:
            self._lane.upload(tokens, self._places)
            chosen = input_ids.index_select(0, self._places[:n])
        self._token_ids[first : first + n] = chosen
        self._is_clear = False
        return first

    def take_back(self, n: int) -> None:
        """Let the next tokens have the last n slots, which were not used."""
        self._n_used -= n

    def buffer_of(self, first: int) -> int:
        """The buffer that a first slot belongs to."""
        return first // self.max_tokens

    def token_ids(self, first: int, n: int) -> torch.Tensor:
        """int32 [n] on the device, the tokens that were given these slots."""
        return self._token_ids[first : first + n]

    def clear(self) -> None:
        """Take all slots back."""
        if not self._is_clear:
            self.slot_map.fill_(-1)
            self._slots[self._placed] = -1
            self._placed = self._placed[:0]
            self._is_clear = True
