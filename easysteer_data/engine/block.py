"""What the bytes of a block in a box mean: labels, largest values and rows of one engine step.

A word a layer says whether its rows have arrived, for whoever does not wait for the others.
Both ends compute the same places from the number of rows, so that no description travels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from easysteer_data.engine.wire import DTYPES, StreamShape
from easysteer_data.types import Stream

_ALIGN = 64
_LABELS = ("prompt", "position", "token_id")


@dataclass(frozen=True, slots=True)
class BlockStream:
    """One stream of a block.

    Attributes:
        n_layers: layers that were ordered.
        width: values per row on this rank.
        dtype: dtype of the rows in the block.
    """

    n_layers: int
    width: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The streams of a capture's blocks, in order.

    Attributes:
        streams: stream -> its layers, width and dtype on this rank.
    """

    streams: Mapping[Stream, BlockStream]

    @classmethod
    def of(cls, part: Mapping[Stream, StreamShape]) -> BlockShape:
        """The blocks of a rank's part of a capture."""
        return cls(
            {
                stream: BlockStream(len(shape.layer_ids), shape.width, DTYPES[shape.dtype])
                for stream, shape in part.items()
            }
        )

    def parts(self, n_rows: int, *, has_values: bool) -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, dtype and shape of every tensor in a block of so many rows."""
        for label in _LABELS:
            yield label, torch.int32, (n_rows,)
        for stream, one in self.streams.items():
            yield f"arrived.{stream}", torch.int64, (one.n_layers,)
            yield f"peaks.{stream}", torch.float32, (one.n_layers, n_rows)
            yield f"values.{stream}", one.dtype, (one.n_layers, n_rows if has_values else 0, one.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a token's rows, without labels."""
        return sum(one.n_layers * one.width * one.dtype.itemsize for one in self.streams.values())

    def max_rows(self, n_bytes: int) -> int:
        """Most rows of a block that fits so many bytes, values included; 0 if not even one does."""
        most = n_bytes // (4 * len(_LABELS))
        sizes = range(most + 1)
        return max(0, bisect_right(sizes, n_bytes, key=lambda n: self.n_bytes(n, has_values=True)) - 1)

    def n_bytes(self, n_rows: int, *, has_values: bool) -> int:
        """Bytes of a block of so many rows."""
        return sum(
            _aligned(dtype.itemsize * _n_values(shape))
            for _, dtype, shape in self.parts(n_rows, has_values=has_values)
        )

    def views(self, memory: torch.Tensor, n_rows: int, *, has_values: bool) -> dict[str, torch.Tensor]:
        """The tensors of a block, in its memory (uint8 [n_bytes])."""
        tensors, start = {}, 0
        for name, dtype, shape in self.parts(n_rows, has_values=has_values):
            n_bytes = dtype.itemsize * _n_values(shape)
            tensors[name] = memory[start : start + n_bytes].view(dtype).view(shape)
            start += _aligned(n_bytes)
        return tensors


def _n_values(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGN) * _ALIGN
