"""Chats in, token ids out, and text that holds a BOS already checked: one BOS at the start, never two.

Takes any Hugging Face tokenizer; knows no engine, corpus or file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from easysteer_data.errors import SettingsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BosPolicy = Literal["refuse", "repair", "keep"]

# Stands for each message's content while we look which form of content a template shows.
_PROBE = "probe"


class TokenPrompt(TypedDict):
    """A prompt that `LLM.generate` runs as it stands: vLLM adds no special tokens to token ids."""

    prompt_token_ids: list[int]
    prompt: str


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
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
        SettingsError: no template, messages that can't be rendered, or both ways to end the chat at once.
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
    token_ids = _token_ids(tokenizer, text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    # A BOS id of 0 is an id like any other, so None is asked for by name.
    if bos is not None and token_ids[:1] != [bos] and _starts_texts_with_bos(tokenizer):
        token_ids = [bos, *token_ids]
    check_bos(tokenizer, [token_ids], "refuse", names=["the rendered chat"])
    return {"prompt_token_ids": token_ids, "prompt": text}


def check_bos(
    tokenizer: PreTrainedTokenizerBase,
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


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise SettingsError("the chat has no messages; give it one turn or more")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise SettingsError(f"message {number} has no role; write {{'role': 'user', 'content': ...}}")
        content = message.get("content")
        if isinstance(content, str):
            continue
        if not isinstance(content, Sequence) or not content:
            raise SettingsError(
                f"message {number} ({message['role']}): content is {content!r}; give a text or a list of "
                "{'type': 'text', 'text': ...} parts"
            )
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise SettingsError(
                    f"message {number} ({message['role']}): content part {kind!r} is not text; give an "
                    "image beside an already rendered text, as {'prompt': ..., 'multi_modal_data': ...}"
                )
            if not isinstance(part.get("text"), str):
                raise SettingsError(f"message {number} ({message['role']}): a text part holds no text")


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


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any
) -> str:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except (TemplateError, TypeError, ValueError) as error:
        raise SettingsError(f"the chat template can't render these messages: {error}") from error
    return text


def _fit_contents(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], chat_template: str | None
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


def _token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool) -> list[int]:
    # Padding and truncation are off by name: a tokenizer's own file may ask for them.
    encoded = tokenizer(
        text, add_special_tokens=add_special_tokens, padding=False, truncation=False, verbose=False
    )
    token_ids: list[int] = encoded["input_ids"]
    return token_ids


def _starts_texts_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return _token_ids(tokenizer, "", add_special_tokens=True)[:1] == [tokenizer.bos_token_id]


def _repaired(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | list[int]]
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index, token ids with one BOS) of each prompt that begins with more than one."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            # Most texts hold no BOS, so they can't begin with two: tokenising them would be work for nothing.
            if tokenizer.bos_token not in prompt:
                continue
            prompt = _token_ids(tokenizer, prompt, add_special_tokens=True)
        n_bos = next((n for n, token_id in enumerate(prompt) if token_id != bos), len(prompt))
        if n_bos > 1:
            yield i, prompt[n_bos - 1 :]
