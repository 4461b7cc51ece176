"""Image and text prompts in one batch have the rows that Hugging Face computes from the image itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from easysteer_data.hidden_states import CaptureResult, capture
from tests import oracle
from tests.tiny import save_tiny_idefics3


@pytest.fixture(scope="session")
def idefics3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_idefics3(tmp_path_factory.mktemp("models") / "idefics3")


@pytest.fixture
def vision_llm(engines: Any, idefics3: Path) -> Any:
    """The usual engine, 128 tokens a step, for a model that takes up to two images a prompt."""
    return engines.get(
        idefics3, streams=("hidden_states", "attention_heads"), limit_mm_per_prompt={"image": 2}
    )


def picture(seed: int, width: int = 56, height: int = 56) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def image_prompt(text: str, *images: Image.Image) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": list(images) if len(images) > 1 else images[0]}}


@lru_cache(maxsize=1)
def hugging_face(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoProcessor, Idefics3ForConditionalGeneration

    model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return AutoProcessor.from_pretrained(folder), model


def processed(folder: Path, text: str, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
    processor, _ = hugging_face(folder)
    return dict(processor(text=text, images=list(images), return_tensors="pt"))


@torch.inference_mode()
def block_outputs(
    folder: Path, text: str, images: Sequence[Image.Image], generated: Sequence[int]
) -> list[torch.Tensor]:
    """Each text block's output over prompt and completion: [n_layers] of [n_tokens, hidden_size]."""
    _, model = hugging_face(folder)
    inputs = processed(folder, text, images)
    prompt = inputs.pop("input_ids")
    del inputs["attention_mask"]
    token_ids = torch.cat([prompt, torch.tensor([list(generated)], dtype=prompt.dtype)], dim=1)
    outputs: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).flatten(0, -2).clone())

    handles = [block.register_forward_hook(keep) for block in model.model.text_model.layers]
    try:
        model(input_ids=token_ids, use_cache=False, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def assert_equals_hugging_face(
    result: CaptureResult, i: int, model: Path, text: str, *images: Image.Image
) -> None:
    output = result.outputs[i]
    expected_ids = (
        processed(model, text, images)["input_ids"][0].tolist()
        if images
        else hugging_face(model)[0].tokenizer(text)["input_ids"]
    )
    generated = list(output.outputs[0].token_ids)[:-1]
    assert list(output.prompt_token_ids) == expected_ids
    assert result.sample_positions(i) == list(range(len(expected_ids) + len(generated)))
    assert result.sample_token_ids(i) == [*expected_ids, *generated]
    expected = block_outputs(model, text, images, generated) if images else None
    if expected is None:
        expected = text_block_outputs(model, [*expected_ids, *generated])
    rows = result.sample(i)
    assert sorted(rows) == list(range(len(expected)))
    for layer_id, got in rows.items():
        assert oracle.relative_difference(got, expected[layer_id]) < 1e-4
