"""Prompts as users give them, made into prompts that the engine runs as it stands: chats rendered, one BOS.

Knows the engine by its tokenizer alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from easysteer_data.bos import BosPolicy, check_bos
from easysteer_data.chat import render_chat
from easysteer_data.errors import SettingsError


def prepare_prompts(llm: Any, prompts: Sequence[Any], bos_policy: BosPolicy = "refuse") -> list[Any]:
    """Render message lists and look for a doubled BOS in texts.

    A message list that ends with an assistant's turn leaves that turn open for the model to continue; any
    other gets the header of a new one. To end a chat otherwise, render it with `easysteer_data.chat`.
    Token ids are taken as they are, since vLLM adds nothing to them.

    Args:
        llm: the engine; its tokenizer is loaded only where a prompt is a text or a chat.
        prompts: texts, message lists, and whatever else `LLM.generate` takes.
        bos_policy: what to do with texts to whose BOS the tokenizer would add another one.

    Returns:
        One prompt for each, in order.

    Raises:
        SettingsError: a chat can't be rendered or a text has a doubled BOS; names the prompt.
    """
    if isinstance(prompts, str | Mapping):
        raise SettingsError("prompts is a single prompt; give a list of prompts: [...]")
    prepared = [
        _render(llm, i, prompt) if _is_chat(i, prompt) else prompt for i, prompt in enumerate(prompts)
    ]
    texts = {i: text for i, prompt in enumerate(prepared) if (text := _text_of(prompt)) is not None}
    if texts:
        names = [f"prompt {i}" for i in texts]
        checked = check_bos(llm.get_tokenizer(), list(texts.values()), bos_policy, names=names)
        for i, result in zip(texts, checked, strict=True):
            if not isinstance(result, str):
                prepared[i] = _with_token_ids(prepared[i], result)
    return prepared


def _is_chat(i: int, prompt: Any) -> bool:
    if isinstance(prompt, Mapping) and "role" in prompt:
        raise SettingsError(f"prompt {i} is a single message; a chat is a list of messages: [[...], ...]")
    if not isinstance(prompt, list | tuple):
        return False
    if not prompt:
        raise SettingsError(f"prompt {i} is an empty list: neither a chat nor token ids")
    return isinstance(prompt[0], Mapping)


def _render(llm: Any, i: int, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    last = messages[-1]
    to_continue = isinstance(last, Mapping) and last.get("role") == "assistant"
    try:
        return render_chat(
            llm.get_tokenizer(),
            messages,
            add_generation_prompt=not to_continue,
            continue_final_message=to_continue,
        )
    except SettingsError as error:
        raise SettingsError(f"prompt {i}: {error}") from error


def _text_of(prompt: Any) -> str | None:
    """The text that vLLM will tokenise, None where the prompt has its tokens already."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping) and "prompt_token_ids" not in prompt:
        text = prompt.get("prompt")
        return text if isinstance(text, str) else None
    return None


def _with_token_ids(prompt: Any, token_ids: list[int]) -> dict[str, Any]:
    """The prompt with its text replaced by token ids; images and other options stay."""
    if isinstance(prompt, str):
        return {"prompt_token_ids": token_ids, "prompt": prompt}
    return {**prompt, "prompt_token_ids": token_ids}
