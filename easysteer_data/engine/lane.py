"""How numbers get to a worker's device and rows back: at once on a CPU, beside the engine's work on a GPU.

On a GPU nothing here waits for the device: small uploads go through page-locked memory that is reused only
when it was read, and rows are copied on a stream of their own while the engine's next step runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from easysteer_data.engine.mailbox import Mailbox
from easysteer_data.engine.wide import without_gaps
from easysteer_data.errors import EngineError

_GATHERED_BYTES = 2**27  # rows of many layers that are brought together on the device, to be copied as one
_N_STAGES = 4  # uploads in flight: vLLM prepares a step or two ahead


class Lane:
    """The lane of a CPU: everything is done at once.

    Attributes:
        n_buffers: buffers of rows that are filled in turn, so that one can be copied out meanwhile.
        one: int64 [1] on the device, a one to be copied.
        sorts: whether rows of several steps go out in order of their prompts, which costs a GPU next to
            nothing and saves the host short copies.
    """

    n_buffers = 1
    sorts = False

    def __init__(self, device: torch.device) -> None:
        self.one = torch.ones(1, dtype=torch.int64, device=device)

    def register(self, mailbox: Mailbox) -> None:
        """Make a mailbox ready to be copied into."""

    def unregister(self, mailbox: Mailbox) -> None:
        """Let go of a mailbox."""

    def upload(self, values: np.ndarray, into: torch.Tensor) -> None:
        """Copy host values to the front of a device tensor of their dtype."""
        into[: len(values)].copy_(torch.from_numpy(values))

    def index(self, rows: np.ndarray) -> torch.Tensor:
        """Row numbers, int64 [n], on the device; for copies in a `copying` block."""
        return torch.from_numpy(rows)

    def before_step(self, buffer: int) -> None:
        """Wait, on the device, until the buffer may be written again."""

    @contextmanager
    def copying(self, buffer: int) -> Iterator[None]:  # noqa: ARG002
        """A block in which the buffer is copied out."""
        yield

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copy device rows into a box, in its dtype."""
        into.copy_(source)

    def complete(self, mailbox: Mailbox, n_blocks: int) -> None:
        """Say that so many blocks of the mailbox are whole, once all copies so far are done."""
        mailbox.completed.fill_(n_blocks)

    def drain(self) -> None:
        """Wait until all copies are done."""


class CUDALane(Lane):
    """The lane of a GPU."""

    n_buffers = 2
    sorts = True

    def __init__(self, device: torch.device, max_tokens: int) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = [_event() for _ in range(self.n_buffers)]
        self._count = torch.zeros(1, dtype=torch.int64, device=device)
        self._stages = [
            (torch.empty(8 * max_tokens, dtype=torch.uint8, pin_memory=True), _event())
            for _ in range(2 * _N_STAGES)
        ]
        self._n_uploads = 0

    def register(self, mailbox: Mailbox) -> None:
        """Lock the mailbox's pages and give the GPU access to them."""
        code = int(_cudart().cudaHostRegister(mailbox.whole.data_ptr(), mailbox.whole.nbytes, 0))
        if code:
            raise EngineError(
                f"{mailbox.whole.nbytes:,} bytes of shared memory can't be page-locked (CUDA error {code}); "
                "use a smaller buffer or raise the limit of locked memory"
            )

    def unregister(self, mailbox: Mailbox) -> None:
        """Unlock the pages."""
        _cudart().cudaHostUnregister(mailbox.whole.data_ptr())

    def upload(self, values: np.ndarray, into: torch.Tensor) -> None:
        """Copy host values to the front of a device tensor of their dtype, without a wait."""
        stage, was_read = self._stages[self._n_uploads % len(self._stages)]
        self._n_uploads += 1
        was_read.synchronize()
        staged = stage[: values.nbytes].view(into.dtype)
        staged.numpy()[:] = values
        into[: len(values)].copy_(staged, non_blocking=True)
        was_read.record()

    def index(self, rows: np.ndarray) -> torch.Tensor:
        """Row numbers on the device, without a wait."""
        there = torch.empty(len(rows), dtype=torch.int64, device=self._count.device)
        self.upload(rows, there)
        return there

    def before_step(self, buffer: int) -> None:
        """Let the engine's stream wait for the buffer's last copies."""
        torch.cuda.current_stream().wait_event(self._copied[buffer])

    @contextmanager
    def copying(self, buffer: int) -> Iterator[None]:
        """Copies go on the lane's own stream, behind what the engine has launched so far."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
            self._copied[buffer].record()

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copy device rows into a box, narrowed on the device where the dtypes differ."""
        narrowed = source.to(into.dtype)
        if narrowed.is_contiguous():
            into.copy_(narrowed, non_blocking=True)
            return
        # Rows that have gaps between layers: a copy more on the device costs less than one call a layer.
        n_layers = max(1, _GATHERED_BYTES * len(narrowed) // narrowed.nbytes)
        for target, layers in zip(torch.split(into, n_layers), torch.split(narrowed, n_layers), strict=True):
            target.copy_(without_gaps(layers), non_blocking=True)

    def complete(self, mailbox: Mailbox, n_blocks: int) -> None:
        """Let the GPU write the count behind the copies: the driver sees it only when they are there."""
        self._count.fill_(n_blocks)
        mailbox.completed.copy_(self._count, non_blocking=True)

    def drain(self) -> None:
        """Wait until all copies are done."""
        self._stream.synchronize()


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def lane_for(device: torch.device, max_tokens: int) -> Lane:
    """The lane of a worker's device.

    Args:
        device: the device.
        max_tokens: tokens in one step at most.
    """
    return CUDALane(device, max_tokens) if device.type == "cuda" else Lane(device)
