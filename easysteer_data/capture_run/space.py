"""Whether a run fits its disk. Arithmetic on counts; knows no tensor."""

from __future__ import annotations

import shutil
from pathlib import Path

from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.errors import RunError
from easysteer_data.shards import RunHeader
from easysteer_data.shards.space import shard_bytes

_PROMPT_BYTES = 400  # a prompt's share of the tables beside its tokens and text


def run_bytes(header: RunHeader, n_rows: int, n_tokens: int, n_prompts: int) -> int:
    """About how many bytes a run takes."""
    return shard_bytes(header, n_rows) + 8 * n_tokens + _PROMPT_BYTES * n_prompts


def free_bytes(out: Path) -> int:
    """Free bytes of the disk on which a folder is, or will be."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def check_space(out: Path, plan: CapturePlan, header: RunHeader, n_shards: int) -> None:
    """Refuse a run that would not fit, before it starts; what is there of it already counts.

    Args:
        out: the folder.
        plan: the capture.
        header: the run's header.
        n_shards: shards that come into this folder; they are about equally large.

    Raises:
        RunError: names what is needed and what is free.
    """
    there = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) if out.is_dir() else 0
    whole = run_bytes(header, sum(plan.n_rows), plan.n_tokens, len(plan.prompts))
    needed = whole * n_shards // len(header.plan) - there
    free = free_bytes(out) - int(plan.settings.shards.min_free_gb * 1e9)
    if needed > free:
        raise RunError(
            f"{out}: the run needs about {needed / 1e9:.2f} GB more, but the disk has "
            f"{max(free, 0) / 1e9:.2f} GB to give (shards.min_free_gb={plan.settings.shards.min_free_gb:g} "
            "stay free); free some, select fewer layers or rows, or use a smaller capture.storage; "
            "dry_run=true shows the figures"
        )
