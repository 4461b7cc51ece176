"""Tiny random models of any architecture, with a tokenizer trained on a few lines. Knows nothing of vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SENTENCES = [
    "The city of Paris is in France.",
    "The city of Oslo is in Norway.",
    "A quick brown fox jumps over the lazy dog.",
    "Numbers such as 0 1 2 3 4 5 6 7 8 9 are digits.",
    "Héllo wörld, naïve café 🙂.",
]

LLAMA: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def save_tokenizer(folder: Path) -> int:
    """Train a byte-level BPE on a few sentences, save it, and return a vocabulary size divisible by 64."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return len(fast) + (-len(fast)) % 64


def save_tiny(folder: Path, model_type: str = "llama", **overrides: Any) -> Path:
    """Write a random model of `model_type` (float32) and its tokenizer to `folder`, and return the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(folder)
    base = LLAMA if model_type == "llama" else {}
    config = AutoConfig.for_model(
        model_type,
        **{
            **base,
            "vocab_size": vocab_size,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            **overrides,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases begin at 1 and 0, where a missing one would not be seen
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def save_tiny_idefics3(folder: Path) -> Path:
    """Write a random Idefics3 (float32: 4 vision and 3 text layers), its tokenizer and its processor's files.

    An image becomes 2 x 2 tiles of 28 pixels: 4 `<image>` tokens between marker tokens. vLLM runs it without
    torchvision.
    """
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3VisionConfig,
        LlamaConfig,
    )

    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    markers = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer.add_special_tokens({"additional_special_tokens": [*markers, *tiles]})
    tokenizer.save_pretrained(folder)
    vision = Idefics3VisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=56,
        patch_size=14,
    )
    text = LlamaConfig(
        **LLAMA,
        vocab_size=len(tokenizer) + (-len(tokenizer)) % 64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    config = Idefics3Config(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    Idefics3ForConditionalGeneration(config).to(torch.float32).save_pretrained(folder)
    image_processor = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_convert_rgb": True,
        "do_image_splitting": False,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": 56},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 56},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image_processor))
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder
