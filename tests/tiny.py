"""Tiny random models of any architecture, with a tokenizer trained on a few lines. Knows nothing of vLLM."""

from __future__ import annotations

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
    model.save_pretrained(folder)
    return folder
