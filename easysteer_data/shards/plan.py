"""Which prompts make a shard, and which make a pack. Arithmetic on row counts: knows no tensor, no file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from easysteer_data.errors import SettingsError

Ranges = tuple[tuple[int, int], ...]

SHARD_BYTES = 512 * 2**20
PACK_BYTES = 8 * 2**20


def plan_shards(
    n_rows_per_prompt: Sequence[int], row_bytes: int, *, shard_bytes: int = SHARD_BYTES, min_shards: int = 1
) -> Ranges:
    """Cut the corpus into shards of about equal bytes.

    Depends on nothing but the arguments, so that a continued run finds the same shards.

    Args:
        n_rows_per_prompt: rows that will be stored of each prompt; 0 for one that is skipped.
        row_bytes: bytes of one row of one layer; the widest stream's where there are several.
        shard_bytes: size that one layer's file should be near; it exceeds this by less than one prompt.
        min_shards: at least so many shards, where there are as many prompts.

    Returns:
        Half-open ranges of prompt indices, consecutive, none empty, that cover all prompts.

    Raises:
        SettingsError: there is no prompt, or a size is not positive.
    """
    if min_shards < 1:
        raise SettingsError(f"min_shards must be at least 1, found {min_shards}")
    return _even_ranges(n_rows_per_prompt, row_bytes, shard_bytes, min_shards)


def plan_packs(n_rows_per_prompt: Sequence[int], row_bytes: int, pack_bytes: int) -> Ranges:
    """Cut one shard's prompts into packs of about equal bytes, in the manner of `plan_shards`."""
    return _even_ranges(n_rows_per_prompt, row_bytes, pack_bytes, 1)


def _even_ranges(n_rows_per_prompt: Sequence[int], row_bytes: int, target_bytes: int, n_min: int) -> Ranges:
    """As many ranges as keep the mean at or under the target, each cut at the next prompt's end."""
    n_prompts = len(n_rows_per_prompt)
    if n_prompts == 0:
        raise SettingsError("there is no prompt to plan for")
    if row_bytes < 1 or target_bytes < 1:
        raise SettingsError(f"sizes must be positive: {row_bytes} bytes a row, target {target_bytes} bytes")
    rows = np.asarray(n_rows_per_prompt, dtype=np.int64)
    if rows.min() < 0:
        raise SettingsError(f"prompt {int(rows.argmin())} has a negative number of rows")
    ends = np.cumsum(rows) * row_bytes
    total = int(ends[-1])
    n_ranges = min(max(-(-total // target_bytes), n_min, 1), n_prompts)
    if total == 0:
        ends, total = np.arange(1, n_prompts + 1), n_prompts
    # Whole numbers throughout: a float would cut differently on another machine.
    marks = [-(-k * total // n_ranges) for k in range(1, n_ranges)]
    cuts = [0]
    for k, cut in enumerate(np.searchsorted(ends, marks).tolist(), start=1):
        cuts.append(min(max(cut + 1, cuts[-1] + 1), n_prompts - n_ranges + k))
    return tuple(pairwise([*cuts, n_prompts]))
