"""One BOS at the start of a prompt: finds prompts that would be run with two, adds one that is missing.

Takes any Hugging Face tokenizer; a BOS id of 0 is an id like any other. Knows no engine, corpus or file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, get_args

from easysteer_data.errors import SettingsError

BosPolicy = Literal["refuse", "repair", "keep"]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts are prepared with."""

    bos_token: str | None
    bos_token_id: int | None

    def __call__(self, text: str, **options: Any) -> Any:
        """Return a mapping whose `input_ids` are the text's token ids."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the conversation as text, for `tokenize=False`."""


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the text's token ids, neither padded nor truncated, whatever the tokenizer's file asks for."""
    encoded = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
    token_ids: list[int] = encoded["input_ids"]
    return token_ids


def add_missing_bos(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """Put a BOS before token ids that lack it, where the tokenizer begins its texts with one."""
    bos = tokenizer.bos_token_id
    if bos is None or token_ids[:1] == [bos]:
        return token_ids
    begins_texts = encode(tokenizer, "", add_special_tokens=True)[:1] == [bos]
    return [bos, *token_ids] if begins_texts else token_ids


def n_leading_bos(token_ids: Sequence[int], bos: int | None) -> int:
    """Return how many BOS tokens the ids begin with; 0 for a tokenizer without BOS."""
    if bos is None:
        return 0
    return next((n for n, token_id in enumerate(token_ids) if token_id != bos), len(token_ids))


def check_bos(
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    policy: BosPolicy = "refuse",
    *,
    names: Sequence[str] | None = None,
) -> list[str | list[int]]:
    """Find prompts that would be run with two BOS tokens at their start.

    Text that already went through a chat template often begins with a BOS, and vLLM adds another one to
    texts (vllm-project/vllm#27515).

    Args:
        tokenizer: the model's own; one without BOS finds nothing.
        prompts: texts, as they would be given to vLLM, or token ids.
        policy: "refuse" them, "repair" them, or "keep" them as they are.
        names: what errors call the prompts; None = "prompt 0" and so on.

    Returns:
        The prompts as given; repaired ones as token ids with one BOS. Ids and not text, since only these
        are the template's own tokens behind the BOS.

    Raises:
        SettingsError: a prompt begins with two BOS tokens and the policy is "refuse"; names it.

    Warns:
        UserWarning: once for all prompts that were repaired.
    """
    if policy not in get_args(BosPolicy):
        raise SettingsError(
            f"policy {policy!r} for doubled BOS; choose from {', '.join(get_args(BosPolicy))}"
        )
    checked = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    repaired = {} if policy == "keep" else dict(_repaired(tokenizer, checked))
    if not repaired:
        return checked
    first = next(iter(repaired))
    name = f"prompt {first}" if names is None else names[first]
    others = f" ({len(repaired) - 1} other prompts do as well)" if len(repaired) > 1 else ""
    fault = f"{name} begins with more than one BOS token, {tokenizer.bos_token!r}{others}"
    if policy == "refuse":
        raise SettingsError(
            f"{fault}; leave it out of the text where the tokenizer adds one, or use the policy 'repair'"
        )
    warnings.warn(f"{fault}; all but one were dropped", UserWarning, stacklevel=2)
    return [repaired.get(i, prompt) for i, prompt in enumerate(checked)]


def _repaired(tokenizer: Tokenizer, prompts: Sequence[str | list[int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield (index, token ids with one BOS) of each prompt that begins with more than one."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            # Most texts hold no BOS, so they can't begin with two: tokenising them would be work for nothing.
            if str(tokenizer.bos_token) not in prompt:
                continue
            prompt = encode(tokenizer, prompt, add_special_tokens=True)
        n_bos = n_leading_bos(prompt, bos)
        if n_bos > 1:
            yield i, prompt[n_bos - 1 :]
