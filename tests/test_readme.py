"""The README's examples run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from easysteer_data import capture
from tests.runs import random_rows, write_run

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
# vLLM can't be imported: the environment of someone who only reads data sets.
WITHOUT_VLLM = "import sys\nsys.modules['vllm'] = None\n"


def block(word: str) -> str:
    (found,) = [code for code in BLOCKS if word in code]
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder in which outputs/demo/capture is a run with the layers that the README names."""
    write_run(tmp_path / "outputs" / "demo" / "capture", random_rows(layer_ids=(11, 12)))
    return tmp_path


def run(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:easysteer_data", "-c", WITHOUT_VLLM + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plain_webdataset_reads_every_row_without_vllm(demo: Path) -> None:
    assert int(run(block("wds.WebDataset"), demo)) == len(random_rows().x)


def test_a_probe_trains_on_the_datamodule_without_vllm(demo: Path) -> None:
    run(block("Trainer("), demo)


def test_a_captured_row_has_the_shape_that_is_printed(engines: Any, tiny_model: Path) -> None:
    engines.close()
    code = (
        block("open_llm(")
        .replace("path/to/model", str(tiny_model))
        .replace(
            "max_model_len=2048, kv_cache_memory_bytes=2**30",
            "max_model_len=64, kv_cache_memory_bytes=2**28, enforce_eager=True",
        )
    )
    code = code.replace("[8, 12]", "[0, 2]").replace("rows(12)", "rows(2)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torch.Size([1, 128])" in done.stdout


def test_a_run_in_a_notebook_is_read_and_probed_without_vllm(demo: Path) -> None:
    run(block("figures_of("), demo)


def test_prompts_are_steered_as_it_is_printed(engines: Any, tiny_model: Path) -> None:
    llm = engines.get(tiny_model, steering=True)
    code = block("SteeringSpec(").replace('source="vector.safetensors"', "data={2: torch.ones(128)}")
    names = {"llm": llm, "prompts": ["Paris", "A fox", "1 2"], "capture": capture, "torch": torch}
    exec(code.replace("layers=[12]", "layers=[2]"), names)
    assert len(names["outputs"]) == 3
    assert len(names["rows"]) == 3


def test_every_bash_command_names_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"scripts/\w+", text):
        assert (ROOT / name).exists()
    for name in re.findall(r"pipelines\.(\w+)", text):
        assert (ROOT / "pipelines" / f"{name}.py").exists()
