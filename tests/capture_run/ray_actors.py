"""An actor that makes its rows up instead of running a model, and mishaps that it can be told to have."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from easysteer_data.capture_run.executors.actor import CaptureActor
from easysteer_data.capture_run.executors.messages import Message, ShardResult, prompts_of, shapes_message
from easysteer_data.capture_run.executors.staging import write_staged
from easysteer_data.errors import ProofError, RunError
from easysteer_data.shards import RunHeader
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.shards.shard_files import make_folders, write_shard
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, RowIndex


def made_shard(number: int, prompts: Sequence[Prompt], header: RunHeader) -> CapturedShard:
    """Rows that are a function of the prompts' tokens."""
    columns = [
        (prompt.index, position, token)
        for prompt in prompts
        for position, token in enumerate(prompt.token_ids)
    ]
    index = RowIndex(*(torch.tensor(column, dtype=torch.int32) for column in zip(*columns, strict=True)))
    width = header.streams["hidden_states"].width
    values = {
        layer_id: torch.sin(index.token_id[:, None] + index.position[:, None] * 0.1 + torch.arange(width))
        + layer_id
        for layer_id in header.layers["hidden_states"]
    }
    captured = tuple(CapturedPrompt(prompt, len(prompt.token_ids)) for prompt in prompts)
    return CapturedShard(number, captured, index, {"hidden_states": values})


class MadeRowsActor(CaptureActor):
    """Captures made-up rows; a file MISHAP-NUMBER in the experiment's folder makes that shard fail once.

    A file `always-MISHAP-NUMBER` makes it fail whenever it is tried; a file `pause` holds the seconds that
    each shard takes.
    """

    def _begin(self) -> Message:
        if self._has("begin", 0):
            raise RunError("told to fail")
        shapes = self._plan.shapes() or {}
        return {
            "host": "here",
            "pid": os.getpid(),
            "log": "",
            "shapes": shapes_message(shapes),
            "layouts": {},
        }

    def _capture(self, task: Message, header: RunHeader, place: str) -> ShardResult:
        number = task["number"]
        if self._has("die", number):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._has("full", number):
            raise RunError("the disk is full")
        if self._has("wrong", number):
            raise ProofError("told to be wrong")
        if self._has("slow", number):
            time.sleep(30)
        pause = Path(self._plan.settings.out, "pause")
        time.sleep(float(pause.read_text()) if pause.exists() else 0)
        shard = made_shard(number, prompts_of(task), header)

        def write(folder: Path) -> ShardEntry:
            make_folders(folder, header)
            return write_shard(folder, header, shard).entry

        return ShardResult(write_staged(self._plan, place, write), len(shard.index), {})

    def _has(self, mishap: str, number: int) -> bool:
        out = Path(self._plan.settings.out)
        if (out / f"always-{mishap}-{number}").exists():
            return True
        try:
            (out / f"{mishap}-{number}").unlink()
        except FileNotFoundError:
            return False
        return True
