"""Loops over rows run as TorchScript, and as Python where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from easysteer_data.shards import scripted, storage_loops


@pytest.mark.parametrize("function", [storage_loops.encode_rows, storage_loops.storage_errors])
def test_every_loop_leaves_the_interpreter_to_other_threads(function: Any) -> None:
    assert isinstance(function, torch.jit.ScriptFunction)


def test_where_torchscript_is_gone_python_runs_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise RuntimeError("TorchScript was removed")

    def double(rows: torch.Tensor) -> torch.Tensor:
        return 2 * rows

    monkeypatch.setattr(torch.jit, "script", gone)
    assert scripted.scripted(double) is double
