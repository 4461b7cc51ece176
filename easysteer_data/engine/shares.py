"""How much shared memory each worker gets for its rows on their way. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from easysteer_data.engine.block import BlockShape
from easysteer_data.engine.mailbox import BOX_ALIGN, N_BOXES

# A step may have ten thousand rows: smaller boxes would take longer to fill one by one than to copy.
_MIN_ROWS = 16
_KEPT_BYTES = 2**28  # rows of small steps on the device


def share_of_each(shapes: Sequence[BlockShape], bytes_in_all: int) -> int:
    """An equal share of the workers that hand rows over, but room for a few rows in each box.

    Args:
        shapes: what a block of each rank holds; no stream where another rank hands over the same.
        bytes_in_all: of all workers together.
    """
    giving = [shape for shape in shapes if shape.streams]
    least = max((shape.n_bytes(_MIN_ROWS, has_values=True) for shape in giving), default=0)
    return max(bytes_in_all // max(1, len(giving)), N_BOXES * _in_boxes(least))


def mailbox_sizes(shapes: Sequence[BlockShape], bytes_each: int, max_tokens: int) -> list[int]:
    """Bytes of each rank's boxes: as given where it hands rows over, elsewhere as a step's labels take.

    All of a GPU's mailbox is locked in memory, used or not, which takes long: its size must not change with
    the layers that are asked for.

    Args:
        shapes: what a block of each rank holds.
        bytes_each: of a rank that hands rows over.
        max_tokens: tokens in one step at most.
    """
    labels = N_BOXES * _in_boxes(BlockShape({}).n_bytes(max_tokens, has_values=False))
    return [bytes_each if shape.streams else min(labels, bytes_each) for shape in shapes]


def kept_rows(shapes: Sequence[BlockShape]) -> int:
    """Rows that may be kept to go out together: on the rank whose rows are the longest, so many bytes.

    All ranks keep the same ones, so that their blocks belong together by number.
    """
    row_bytes = max(shape.row_bytes for shape in shapes)
    return _KEPT_BYTES // max(1, row_bytes)


def _in_boxes(n_bytes: int) -> int:
    """Rounded up to what a box may have."""
    return max(1, -(-n_bytes // BOX_ALIGN)) * BOX_ALIGN
