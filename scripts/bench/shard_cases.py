"""The capture stage's own code as a case of a bench: token ids through an open engine into shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

VOCABULARY = 32_000


def write_inputs(folder: Path, model: Path, prompts: Sequence[Sequence[int]]) -> None:
    """A corpus of token ids, and a folder with the model's config, for its shape, and a tokenizer.

    The engine is open already: the weights in the folder are none, and only there to be hashed.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    described = folder / "model"
    described.mkdir(parents=True)
    shutil.copy(model / "config.json", described)
    save_file({"none": torch.zeros(1)}, described / "model.safetensors")
    words = models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0")  # noqa: S106
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="t1").save_pretrained(described)  # noqa: S106
    lines = (json.dumps({"token_ids": list(token_ids)}) for token_ids in prompts)
    (folder / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))


def shard_case(
    llm: Any, folder: Path, layers: Sequence[int], dtype: str, buffer_gb: float
) -> Callable[[], int]:
    """What captures the corpus of `write_inputs` whole into `folder`/run; returns its rows of a layer.

    Args:
        llm: an engine by `open_llm`.
        folder: of the inputs.
        layers: which layers, every prompt token of them.
        dtype: the model's, in which rows are stored.
        buffer_gb: rows of all layers in memory at once.
    """
    from easysteer_data.capture_run import capture_corpus, plan_capture
    from easysteer_data.settings import ExperimentSettings, build

    values = {
        "name": "bench",
        "out": str(folder / "run"),
        "progress": False,
        "model": {"path": str(folder / "model"), "dtype": dtype, "max_model_len": 2048},
        "corpus": {"path": str(folder / "corpus.jsonl"), "format": "jsonl", "token_ids_column": "token_ids"},
        "capture": {"layers": list(layers), "storage": dtype},
        "select": {"prompt": "all"},
        # The last one is written when the engine has ended: short ones, since the whole run is.
        "shards": {"max_buffer_gb": buffer_gb, "min_free_gb": 0.1, "min_shards": 32},
    }
    settings = build(ExperimentSettings, values)
    plan = plan_capture(settings)
    return lambda: capture_corpus(settings, folder / "run", plan, llm).n_rows


class LateSyncs:
    """Puts off every fsync behind the engine's last step: what a run takes without its final ones."""

    def __init__(self) -> None:
        self._put_off: list[int] = []

    def around(self, capture: Callable[[], int]) -> int:
        """Call it with these fsyncs put off."""
        from vllm.v1.engine.llm_engine import LLMEngine

        step, fsync, is_late = LLMEngine.step, os.fsync, False

        def run_step(engine: Any) -> Any:
            nonlocal is_late
            outputs = step(engine)
            is_late = not engine.has_unfinished_requests()
            return outputs

        def sync(descriptor: int) -> None:
            if is_late:
                self._put_off.append(os.dup(descriptor))
            else:
                fsync(descriptor)

        with patch.object(LLMEngine, "step", run_step), patch.object(os, "fsync", sync):
            return capture()

    def catch_up(self) -> None:
        """Do them."""
        while self._put_off:
            descriptor = self._put_off.pop()
            os.fsync(descriptor)
            os.close(descriptor)
