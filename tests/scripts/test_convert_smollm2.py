"""The converted folder, loaded by transformers, against the model and tokeniser that the GGUF was made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.convert_smollm2 import convert
from tests.scripts.small_gguf import make_model, train_tokenizer, write_gguf
from tests.tiny import SENTENCES


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_logits_are_those_of_the_model_in_the_file(
    tmp_path: Path, dtype: str, tied: bool
) -> None:
    tokenizer = train_tokenizer()
    model = make_model(tokenizer.get_vocab_size(), tied).to(torch.float32)
    write_gguf(tmp_path / "model.gguf", model, tokenizer)
    convert(tmp_path / "model.gguf", tmp_path / "model", dtype)

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").eval()
    expected = model.to(getattr(torch, dtype))
    assert loaded.dtype == getattr(torch, dtype)
    assert loaded.state_dict().keys() == expected.state_dict().keys()
    for name, weight in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    token_ids = torch.tensor([tokenizer.encode(SENTENCES[0]).ids])
    with torch.no_grad():
        assert torch.equal(loaded(token_ids).logits, expected(token_ids).logits)


def test_the_tokeniser_gives_the_ids_of_the_one_in_the_file(tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    write_gguf(tmp_path / "model.gguf", make_model(tokenizer.get_vocab_size()), tokenizer)
    convert(tmp_path / "model.gguf", tmp_path / "model", "float32")

    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    for text in [*SENTENCES, "In 1969, 2 of 384,400 km", "<|im_start|>user\nHi<|im_end|>"]:
        token_ids = tokenizer.encode(text).ids
        assert loaded(text)["input_ids"] == token_ids
        assert loaded.decode(token_ids) == text
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id, loaded.unk_token_id) == (
        1,
        2,
        2,
        0,
    )
    assert loaded.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "Hi"


def test_another_pre_tokeniser_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    write_gguf(tmp_path / "model.gguf", make_model(tokenizer.get_vocab_size()), tokenizer, pre="llama-bpe")
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre is 'llama-bpe'"):
        convert(tmp_path / "model.gguf", tmp_path / "model", "float32")
    assert not (tmp_path / "model").exists()
