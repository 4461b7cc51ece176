"""Waits for the rows of finished requests, which are on their way for a moment longer than its output is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from easysteer_data.engine.proof import Recorded
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.session import CaptureSession
from easysteer_data.select import SelectSpec

# How long rows may be on their way before all that the engine runs is waited for.
_PATIENCE_S, _POLL_S = 1.0, 0.0002


def rows_unread(select: SelectSpec | None, max_tokens: int, n_generated: int) -> int | None:
    """Rows that a prompt could have given and does not, since its completion ended early.

    Args:
        select: which of its rows are wanted, None = all.
        max_tokens: tokens that it was to generate at most.
        n_generated: tokens that it did generate.

    Returns:
        How many; None where a clause reads generated tokens: the engine records rows that turn out not to be
        wanted, and how many come is not known.
    """
    whole_generation = True if select is None else select.whole_generation
    if max_tokens == 1 or whole_generation is False:
        return 0
    return max_tokens - n_generated if whole_generation else None


def row_check(store: RowStore | None, unread: Iterable[int | None]) -> Callable[[], bool | None]:
    """What says, as often as it is asked, whether all rows of finished requests have come.

    Args:
        store: where they are put; None where there is none, since it is not known how many come.
        unread: `rows_unread` of each prompt of the store.
    """
    if store is not None and None not in (counts := list(unread)):
        return partial(store.has_all_but, [n for n in counts if n is not None])
    return lambda: None


def wait_for_rows(
    session: CaptureSession, has_all: Callable[[], bool | None], add: Callable[[Recorded], None]
) -> bool:
    """Take rows in until all that are wanted are there; wait for no later step if that can be helped.

    Args:
        session: where they come from.
        has_all: whether they are there; None where it is not known how many come.
        add: takes in what has come.

    Returns:
        Whether all that the engine had recorded was waited for, rows of others among it.

    Raises:
        EngineError: the recorder failed in a worker.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (whole := has_all()) is False and time.monotonic() < deadline and not session.keeps_back:
        time.sleep(_POLL_S)
        add(session.look())
    if not whole:
        add(session.fetch())
    return not whole
