"""What tokenising a corpus came to, and the fingerprint of what tokenised it. Loads no tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from easysteer_data.types import Prompt


@dataclass(frozen=True, slots=True)
class TokenisationLedger:
    """What tokenising a corpus came to; kept in the manifest.

    Attributes:
        n_prompts: prompts tokenised.
        n_tokens: their tokens in all, special tokens among them.
        min_prompt_tokens: tokens of the shortest prompt.
        max_prompt_tokens: tokens of the longest prompt.
        bos_token_id: the tokenizer's BOS, None where it has none; 0 is an id like any other.
        n_bos: prompts whose first token is BOS.
        tokenizer_class: name of the tokenizer's class.
        tokenizer_sha256: the tokenizer's fingerprint.
        n_truncated: prompts that were cut to the window; the field "over_long" of each says how.
        skipped: ids of prompts that were left out, since they did not fit the window.
        n_chats: prompts that the chat template made.
        n_pretokenised: prompts that the corpus gave as token ids.
        n_repaired_bos: prompts that began with more than one BOS, of which all but one were dropped.
        chat_template_sha256: of the chat template, None where no prompt is a chat.
    """

    n_prompts: int
    n_tokens: int
    min_prompt_tokens: int
    max_prompt_tokens: int
    bos_token_id: int | None
    n_bos: int
    tokenizer_class: str
    tokenizer_sha256: str
    n_truncated: int = 0
    skipped: tuple[str, ...] = ()
    n_chats: int = 0
    n_pretokenised: int = 0
    n_repaired_bos: int = 0
    chat_template_sha256: str | None = None


def count_tokens(prompts: Sequence[Prompt], tokenizer: Any) -> TokenisationLedger:
    """Return the ledger of 1 tokenised prompt or more; what else was done to them is the caller's to add."""
    lengths = [len(prompt.token_ids) for prompt in prompts]
    bos = tokenizer.bos_token_id
    n_chats = sum(prompt.messages is not None for prompt in prompts)
    return TokenisationLedger(
        n_prompts=len(prompts),
        n_tokens=sum(lengths),
        min_prompt_tokens=min(lengths),
        max_prompt_tokens=max(lengths),
        bos_token_id=bos,
        n_bos=sum(prompt.token_ids[0] == bos for prompt in prompts),
        tokenizer_class=type(tokenizer).__name__,
        tokenizer_sha256=tokenizer_fingerprint(tokenizer),
        n_chats=n_chats,
        chat_template_sha256=chat_template_hash(tokenizer) if n_chats else None,
    )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the sha256, in hex, of all that decides a text's token ids.

    For a fast tokenizer that is its own JSON, where truncation and padding are left out: they change
    with each call. A tokenizer in Python is told by its class, vocabulary and special tokens.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: dict[str, Any]
    if backend is not None:
        content = json.loads(backend.to_str())
        content.pop("truncation", None)
        content.pop("padding", None)
    else:
        content = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    content["special tokens"] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def chat_template_hash(tokenizer: Any) -> str:
    """Return the sha256, in hex, of the template that chats are rendered with, as UTF-8."""
    template: str = tokenizer.get_chat_template()
    return hashlib.sha256(template.encode()).hexdigest()
