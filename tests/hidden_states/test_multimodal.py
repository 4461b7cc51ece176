"""Image and text prompts in one batch have the rows that Hugging Face computes from the image itself."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from easysteer_data.errors import SettingsError
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


def processed(folder: Path, text: str, images: list[Image.Image]) -> tuple[list[int], dict[str, Any]]:
    """The prompt's token ids, placeholders expanded, and what the model takes beside them."""
    processor, _ = hugging_face(folder)
    inputs = dict(processor(text=text, images=images or None, return_tensors="pt"))
    del inputs["attention_mask"]
    return inputs.pop("input_ids")[0].tolist(), inputs


@torch.inference_mode()
def block_outputs(folder: Path, token_ids: list[int], inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Each text block's output: [n_layers] of [n_tokens, hidden_size]."""
    _, model = hugging_face(folder)
    outputs: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).flatten(0, -2).clone())

    handles = [block.register_forward_hook(keep) for block in model.model.text_model.layers]
    try:
        model(input_ids=torch.tensor([token_ids]), use_cache=False, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def assert_equals_hugging_face(result: CaptureResult, prompts: list[dict[str, Any]], folder: Path) -> None:
    for i, prompt in enumerate(prompts):
        images = prompt.get("multi_modal_data", {}).get("image", [])
        token_ids, inputs = processed(
            folder, prompt["prompt"], images if isinstance(images, list) else [images]
        )
        assert list(result.outputs[i].prompt_token_ids) == token_ids
        read = [*token_ids, *result.outputs[i].outputs[0].token_ids[:-1]]
        positions = result.sample_positions(i)
        assert result.sample_token_ids(i) == [read[position] for position in positions]
        expected = block_outputs(folder, read, inputs)
        rows = result.sample(i)
        assert list(rows) == list(range(len(expected)))
        for layer_id, layer_rows in rows.items():
            assert oracle.relative_difference(layer_rows, expected[layer_id][positions]) < 1e-4


def lengths(result: CaptureResult) -> list[int]:
    return [len(output.prompt_token_ids) for output in result.outputs]


def test_image_and_text_prompts_in_one_batch_have_every_row(vision_llm: Any, idefics3: Path) -> None:
    prompts = [
        image_prompt("User:<image>describe this", picture(0)),
        {"prompt": "plain text here"},
        image_prompt("<image>and<image>: the same?", picture(1), picture(2, width=40)),
        image_prompt("User:<image>describe this", picture(3, height=23)),
    ]
    result = capture(vision_llm, prompts, max_tokens=4, ignore_eos=True)
    assert [result.sample_positions(i) for i in range(4)] == [list(range(n + 3)) for n in lengths(result)]
    assert_equals_hugging_face(result, prompts, idefics3)


def test_placeholders_of_an_image_are_tokens_of_their_own_position(vision_llm: Any, idefics3: Path) -> None:
    """Each image is 4 `<image>` tokens; clauses see them at the positions that they were expanded to."""
    prompt = image_prompt("User:<image>describe this", picture(0))
    token_ids, _ = processed(idefics3, "User:<image>describe this", [picture(0)])
    image_id = hugging_face(idefics3)[1].config.image_token_id
    placeholders = [position for position, token in enumerate(token_ids) if token == image_id]
    assert len(placeholders) == 4
    assert placeholders == list(range(placeholders[0], placeholders[0] + 4))

    result = capture(vision_llm, [prompt], select={"prompt_tokens": [image_id]})
    assert result.sample_positions(0) == placeholders
    assert result.sample_token_ids(0) == [image_id] * 4
    assert_equals_hugging_face(result, [prompt], idefics3)
    last = capture(vision_llm, [prompt], select={"prompt_positions": [-1]})
    assert last.sample_positions(0) == [len(token_ids) - 1]


def test_an_image_cut_in_two_by_a_prefill_chunk_has_every_row_once(vision_llm: Any, idefics3: Path) -> None:
    image_id = hugging_face(idefics3)[1].config.image_token_id
    text = "0" * 124 + "<image>" + "1" * 60
    prompt = image_prompt(text, picture(0))
    token_ids, _ = processed(idefics3, text, [picture(0)])
    # The engine takes 128 tokens a step: the border falls between two placeholders.
    assert token_ids[127:129] == [image_id, image_id]
    result = capture(vision_llm, [prompt])
    assert result.sample_positions(0) == list(range(len(token_ids)))
    assert_equals_hugging_face(result, [prompt], idefics3)


def test_prompts_that_differ_in_the_image_alone_have_rows_of_their_own(
    vision_llm: Any, idefics3: Path
) -> None:
    """Their token ids are equal, so only the image tells them apart in vLLM's caches."""
    prompts = [image_prompt("User:<image>describe this", picture(seed)) for seed in (4, 5, 4)]
    first, second = capture(vision_llm, prompts), capture(vision_llm, prompts)
    assert_equals_hugging_face(first, prompts, idefics3)
    for layer_id in first.layer_ids:
        assert torch.equal(first.sample(0)[layer_id], first.sample(2)[layer_id])
        assert not torch.equal(first.sample(0)[layer_id], first.sample(1)[layer_id])
        assert torch.equal(first.rows(layer_id), second.rows(layer_id))


def test_an_image_prompt_alone_equals_the_batch_bit_for_bit(vision_llm: Any) -> None:
    prompts = [
        {"prompt": "plain text here"},
        image_prompt("<image>and<image>", picture(6), picture(7)),
        image_prompt("what is <image>", picture(8)),
    ]
    batch = capture(vision_llm, prompts)
    for i, prompt in enumerate(prompts):
        alone = capture(vision_llm, [prompt])
        for layer_id in batch.layer_ids:
            assert torch.equal(batch.sample(i)[layer_id], alone.rows(layer_id))


def test_heads_are_those_of_the_text_model(vision_llm: Any) -> None:
    """The vision tower has more blocks than the text model; none of its attention layers is taken."""
    prompts = [image_prompt("what is <image>", picture(8))]
    result = capture(vision_llm, prompts, stream="attention_heads")
    assert result.layer_ids == [0, 1, 2]
    assert result.layouts == {i: {"width": 128, "num_heads": 4, "head_size": 32} for i in range(3)}
    assert result.rows(0).shape == (lengths(result)[0], 128)


def test_an_image_prompt_whose_bos_is_doubled_keeps_its_image_when_repaired(
    vision_llm: Any, idefics3: Path
) -> None:
    once = image_prompt("<s>what is <image>", picture(8))
    twice = image_prompt("<s><s>what is <image>", picture(8))
    with pytest.raises(SettingsError, match="prompt 1 begins with more than one BOS"):
        capture(vision_llm, [once, twice])
    with pytest.warns(UserWarning, match="prompt 1 begins with more than one BOS"):
        result = capture(vision_llm, [once, twice], bos="repair")
    assert_equals_hugging_face(result, [once, once], idefics3)


def test_more_images_than_the_engine_takes_leave_it_usable(vision_llm: Any) -> None:
    good = image_prompt("what is <image>", picture(8))
    bad = image_prompt("<image><image><image>", picture(1), picture(2), picture(3))
    with pytest.raises(SettingsError, match="prompt 1: vLLM refuses it: At most 2 image"):
        capture(vision_llm, [good, bad])
    assert vision_llm.llm_engine.get_num_unfinished_requests() == 0
    assert len(capture(vision_llm, [good])) == 1
