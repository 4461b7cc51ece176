"""Chats in, token ids with one BOS out, through the model's own template.

Takes any Hugging Face tokenizer; knows no engine, corpus or file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from easysteer_data.bos import Tokenizer, add_missing_bos, encode
from easysteer_data.errors import SettingsError

# Stands for each message's content while we look which form of content a template shows.
_PROBE = "probe"


class TokenPrompt(TypedDict):
    """A prompt that `LLM.generate` runs as it stands: vLLM adds no special tokens to token ids."""

    prompt_token_ids: list[int]
    prompt: str


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    chat_template: str | None = None,
) -> TokenPrompt:
    """Render a chat through the model's template and tokenise it, with exactly one BOS.

    The template's text is tokenised without special tokens, so a BOS that the template writes stays the
    only one; where the template writes none and the tokenizer starts texts with one, it is added.
    Tokenizers without BOS, or that don't use theirs, are left alone. Nothing is padded or truncated.

    Args:
        tokenizer: the model's own.
        messages: the turns, each with a `role` and a `content`: text, or a list of `{"type": "text",
            "text": ...}` parts. A template that shows only the other form is given that one; several parts
            are then joined by newlines, as vLLM does.
        add_generation_prompt: end with the header of a new assistant turn.
        continue_final_message: leave the last turn, the assistant's, open for the model to continue.
        chat_template: a Jinja template to use in place of the tokenizer's.

    Returns:
        The token ids and the text that they stand for.

    Raises:
        SettingsError: no template, messages that can't be rendered, both ways to end the chat at once, or two
            BOS tokens.
    """
    _check_messages(messages)
    _check_ending(messages, add_generation_prompt, continue_final_message)
    if chat_template is None and getattr(tokenizer, "chat_template", None) is None:
        raise SettingsError(
            "this tokenizer has no chat template; give one as `chat_template=`, or write the prompt as text"
        )
    text = _apply_template(
        tokenizer,
        _fit_contents(tokenizer, messages, chat_template),
        chat_template=chat_template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
    )
    token_ids = add_missing_bos(tokenizer, encode(tokenizer, text, add_special_tokens=False))
    if token_ids[:2] == [tokenizer.bos_token_id] * 2:
        raise SettingsError(
            f"the rendered chat begins with two BOS tokens, {tokenizer.bos_token!r}: the chat template and "
            "the first message may each hold one; take one out"
        )
    return {"prompt_token_ids": token_ids, "prompt": text}


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise SettingsError("the chat has no messages; give it one turn or more")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise SettingsError(f"message {number} has no role; write {{'role': 'user', 'content': ...}}")
        _check_content(message.get("content"), f"message {number} ({message['role']})")


def _check_content(content: Any, owner: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, Sequence) or not content:
        raise SettingsError(
            f"{owner}: content is {content!r}; give a text or a list of {{'type': 'text', 'text': ...}} parts"
        )
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if not isinstance(part, Mapping) or kind != "text":
            raise SettingsError(
                f"{owner}: content part {kind!r} is not text; give an image beside an already rendered text, "
                "as {'prompt': ..., 'multi_modal_data': ...}"
            )
        if not isinstance(part.get("text"), str):
            raise SettingsError(f"{owner}: a text part holds no text")


def _check_ending(
    messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, continue_final_message: bool
) -> None:
    if not continue_final_message:
        return
    if add_generation_prompt:
        raise SettingsError(
            "continue_final_message and add_generation_prompt exclude each other: the first leaves the last "
            "turn open, the second begins a new one; pass add_generation_prompt=False"
        )
    role = messages[-1]["role"]
    if role != "assistant":
        raise SettingsError(f"continue_final_message: the last message is the {role}'s, not the assistant's")


def _apply_template(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except (TemplateError, TypeError, ValueError) as error:
        raise SettingsError(f"the chat template can't render these messages: {error}") from error
    return text


def _fit_contents(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], chat_template: str | None
) -> list[dict[str, Any]]:
    """Return the messages with contents in a form that the template shows, the given form first.

    A template that loops over parts drops a text in silence, and one that takes texts may show a list as
    Python writes it. So a probe of the same roles is rendered, which also lets a template refuse them.
    """
    given_parts = any(not isinstance(message["content"], str) for message in messages)
    faults: list[SettingsError] = []
    for form in (_as_parts, _as_text) if given_parts else (_as_text, _as_parts):
        content = form(_PROBE)
        probe = [{**message, "content": content} for message in messages]
        try:
            shown = _apply_template(tokenizer, probe, chat_template=chat_template)
        except SettingsError as error:
            faults.append(error)
            continue
        if _PROBE in shown and (isinstance(content, str) or str(content) not in shown):
            return [{**message, "content": form(message["content"])} for message in messages]
    raise faults[0] if faults else SettingsError("the chat template shows no content of these messages")


def _as_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _as_parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [dict(p) for p in content]
