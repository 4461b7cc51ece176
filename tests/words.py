"""A tokenizer of a few whole words, whose ids can be written by hand."""

from __future__ import annotations

from typing import Any

# The ids are the places in this list; "<s>" is a BOS of id 0, "<b>" one of id 8.
WORDS = ["<s>", "</s>", "<pad>", "[user]", "[assistant]", "[system]", "[end]", "<unk>", "<b>"]
WORDS += ["hello", "world", "good", "day"]  # 9, 10, 11, 12


def word_tokenizer(
    *,
    bos: str | None = "<s>",
    adds_bos: bool = False,
    chat_template: str | None = None,
    pads_left_to: int | None = None,
) -> Any:
    """Return a fast tokenizer of `WORDS`, split at blanks.

    Args:
        bos: its BOS token.
        adds_bos: whether texts are begun with `bos`.
        chat_template: its Jinja template.
        pads_left_to: let the tokenizer's own file ask for left padding to this many tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([word for word in WORDS if word[0] in "<["])
    if adds_bos and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, WORDS.index(bos))]
        )
    if pads_left_to is not None:
        tokenizer.enable_padding(direction="left", pad_id=2, pad_token="<pad>", length=pads_left_to)
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    if bos is not None:
        names["bos_token"] = bos
    side = "right" if pads_left_to is None else "left"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side=side, chat_template=chat_template, **names
    )
