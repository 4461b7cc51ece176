"""What travels between driver and workers, and engines that are refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from easysteer_data.engine.tapped import check_adapters
from easysteer_data.engine.wire import RequestTag, StartOrder, Sums
from easysteer_data.errors import UnsupportedEngineError


@pytest.mark.parametrize("adapters", [None, {"image": "folder"}])
def test_engines_that_choose_adapters_themselves_are_refused(adapters: dict[str, str] | None) -> None:
    lora = None if adapters is None else SimpleNamespace(default_mm_loras=adapters)
    llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(lora_config=lora)))
    if adapters is None:
        check_adapters(llm)
    else:
        with pytest.raises(UnsupportedEngineError, match="without default_mm_loras"):
            check_adapters(llm)


def test_messages_survive_their_way() -> None:
    layers, dtypes = {"hidden_states": (1, 2)}, {"hidden_states": "float16"}
    order = StartOrder(layers, dtypes, "mailboxes", [64], 3, 7, [0, 16], "mean", 9, "spool")
    assert StartOrder.from_wire(order.to_wire()) == replace(order, layers={"hidden_states": [1, 2]})
    sums = Sums(torch.tensor([4], dtype=torch.int32), {"router_logits": torch.ones(1, 1, 2).double()})
    assert torch.equal(
        Sums.from_tensors(sums.to_tensors()).values["router_logits"], sums.values["router_logits"]
    )
    assert RequestTag.of(object()) is None


def test_what_a_killed_driver_left_in_shared_memory_is_removed_and_nothing_else() -> None:
    from easysteer_data.engine.spool import make_spool, remove_spool

    code = "from easysteer_data.engine.spool import make_spool; print(make_spool(), flush=True); import os; "
    killed = subprocess.run(
        [sys.executable, "-c", code + "os.kill(os.getpid(), 9)"], capture_output=True, text=True, check=False
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9
    assert left.is_dir()
    first, second = make_spool(), make_spool()
    assert not left.exists()
    assert first.is_dir()
    remove_spool(first)
    remove_spool(second)
    assert not first.exists()
    assert not second.exists()
