"""Prompts in, the same prompts with token ids and a ledger of them out. Knows no engine and no corpus files.

Beside the engine the one module that may import transformers, and only when a tokenizer is loaded.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from easysteer_data.bos import BosPolicy, n_leading_bos
from easysteer_data.chat import render_chat
from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.ledger import TokenisationLedger, count_tokens
from easysteer_data.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OverLong = Literal["fail", "skip", "truncate_left", "truncate_right"]

# What the Hugging Face hub takes for a repository's name; any other text must be a folder.
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")

# Prompts a call: enough to keep all cores busy, few enough that the offsets of a big corpus never pile up.
_BATCH = 1024


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or hub name, as vLLM does: no code of the model's is run.

    Raises:
        SettingsError: the folder is missing or holds no tokenizer that can be loaded.
    """
    from transformers import AutoTokenizer

    # Told apart here, since the hub would be asked for a misspelt folder, with a minute of retries.
    if not Path(model).is_dir() and not _HUB_NAME.fullmatch(model):
        raise SettingsError(f"model {model!r}: there is no such folder (looked for {Path(model).absolute()})")
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise SettingsError(f"model {model!r}: its tokenizer can't be loaded: {error}") from error


def tokenize(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_model_len: int,
    max_tokens: int,
    over_long: OverLong = "fail",
    doubled_bos: BosPolicy = "refuse",
) -> tuple[list[Prompt], TokenisationLedger]:
    """Tokenise all prompts as vLLM would, and find the unfit ones before a run starts.

    vLLM calls the tokenizer with its special tokens and refuses prompts of no tokens and prompts that
    leave no room for one new token; a longer completion it cuts at the window in silence
    (vllm/renderers/base.py, vllm/v1/engine/input_processor.py, vllm/v1/core/sched/utils.py, 0.32.0).
    Here all `max_tokens` must fit.

    Args:
        prompts: the corpus, 1 prompt or more.
        tokenizer: the model's own.
        max_model_len: the engine's window, prompt and completion together, in tokens.
        max_tokens: new tokens asked for, 1 or more.
        over_long: what to do with prompts that don't fit: "fail"; "skip" leaves them out and numbers the
            rest anew, ids unchanged; "truncate_left" keeps BOS and the last tokens, "truncate_right" the
            first tokens.
        doubled_bos: what to do with texts and given tokens that begin with two BOS tokens: "refuse",
            "repair" (drop all but one, with a warning) or "keep". Chats with two are refused.

    Returns:
        The prompts with their token ids, and the ledger. A chat's text is now the rendered one, a trailing
        assistant turn left open; the text of given tokens is their decoding, and their ids are as given.

    Warns:
        UserWarning: once for all prompts that were repaired.

    Raises:
        CorpusError: a prompt is too long, has no tokens or begins with two BOS tokens, a chat can't be
            rendered, or a given token is not in the vocabulary; names the prompt.
        SettingsError: the window has no room for a prompt, or a policy is unknown.
    """
    if over_long not in get_args(OverLong):
        raise SettingsError(f"over_long is {over_long!r}; choose one of {', '.join(get_args(OverLong))}")
    if doubled_bos not in get_args(BosPolicy):
        raise SettingsError(f"doubled_bos is {doubled_bos!r}; choose one of {', '.join(get_args(BosPolicy))}")
    if max_tokens < 1 or max_tokens >= max_model_len:
        raise SettingsError(
            f"max_tokens={max_tokens} must be 1 or more and below max_model_len={max_model_len}"
        )
    if not prompts:
        raise CorpusError("there are no prompts to tokenise")
    given = {prompt.id for prompt in prompts if prompt.token_ids and prompt.messages is None}
    tokenised, n_repaired = _one_bos(list(_with_tokens(prompts, tokenizer)), tokenizer, doubled_bos)
    room = max_model_len - max_tokens
    over = [prompt for prompt in tokenised if len(prompt.token_ids) > room]
    if over and (over_long == "fail" or (over_long == "skip" and len(over) == len(tokenised))):
        raise _too_long(over, max_model_len, max_tokens)
    if over_long == "skip":
        kept = [prompt for prompt in tokenised if len(prompt.token_ids) <= room]
        fitted = [replace(prompt, index=i) for i, prompt in enumerate(kept)]
    else:
        fitted = [_truncate(prompt, room, over_long, tokenizer.bos_token_id) for prompt in tokenised]
    return fitted, replace(
        count_tokens(fitted, tokenizer),
        n_truncated=0 if over_long == "skip" else len(over),
        skipped=tuple(prompt.id for prompt in over) if over_long == "skip" else (),
        n_pretokenised=sum(prompt.id in given for prompt in fitted),
        n_repaired_bos=n_repaired,
    )


def _with_tokens(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> Iterator[Prompt]:
    n_vocabulary = 0
    if any(prompt.token_ids for prompt in prompts):
        n_vocabulary = max(tokenizer.get_vocab().values()) + 1
    # One int object for each id of the vocabulary: a corpus' ids then take 8 bytes each, not 36.
    shared: dict[int, int] = {}
    for start in range(0, len(prompts), _BATCH):
        batch = prompts[start : start + _BATCH]
        texts = [prompt.text for prompt in batch if prompt.messages is None and not prompt.token_ids]
        # verbose=False: the window is checked here, against the engine's and not the tokenizer's length.
        options = {"add_special_tokens": True, "return_attention_mask": False, "verbose": False}
        encoded = iter(tokenizer(texts, **options)["input_ids"] if texts else ())
        for prompt in batch:
            if prompt.messages is not None:
                ready = _rendered(prompt, tokenizer)
            elif prompt.token_ids:
                ready = _decoded(prompt, tokenizer, n_vocabulary)
            else:
                ready = replace(prompt, token_ids=next(encoded))
            if not ready.token_ids:
                raise CorpusError(f"{prompt.source}: prompt {prompt.id!r} has no tokens; vLLM can't run it")
            yield replace(ready, token_ids=tuple(map(shared.setdefault, ready.token_ids, ready.token_ids)))


def _rendered(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    messages = prompt.messages or ()
    to_continue = bool(messages) and messages[-1].get("role") == "assistant"
    try:
        rendered = render_chat(
            tokenizer,
            messages,
            add_generation_prompt=not to_continue,
            continue_final_message=to_continue,
        )
    except SettingsError as error:
        raise CorpusError(f"{prompt.source}: prompt {prompt.id!r}: {error}") from error
    return replace(prompt, text=rendered["prompt"], token_ids=tuple(rendered["prompt_token_ids"]))


def _decoded(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, n_vocabulary: int) -> Prompt:
    unknown = [token_id for token_id in prompt.token_ids if not 0 <= token_id < n_vocabulary]
    if unknown:
        raise CorpusError(
            f"{prompt.source}: prompt {prompt.id!r} holds the token id {unknown[0]}, but the ids of the "
            f"model's tokenizer are 0 to {n_vocabulary - 1}; the prompt may be of another tokenizer"
        )
    text = tokenizer.decode(list(prompt.token_ids), clean_up_tokenization_spaces=False)
    return replace(prompt, text=str(text))


def _one_bos(
    prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase, policy: BosPolicy
) -> tuple[list[Prompt], int]:
    """Return the prompts, settled by the policy, and how many were repaired."""
    if policy == "keep":
        return prompts, 0
    extra = {
        place: n_bos - 1
        for place, prompt in enumerate(prompts)
        if (n_bos := n_leading_bos(prompt.token_ids, tokenizer.bos_token_id)) > 1
    }
    if not extra:
        return prompts, 0
    first = prompts[next(iter(extra))]
    begins = (
        f"{first.source}: prompt {first.id!r} begins with two BOS tokens, {tokenizer.bos_token!r}: it has "
        f"one of its own ({len(extra) - 1} other prompts do as well)"
    )
    if policy == "refuse":
        raise CorpusError(f"{begins}; remove it from the prompt, or set corpus.doubled_bos=repair")
    warnings.warn(f"{begins}; all but one were dropped", UserWarning, stacklevel=3)
    repaired = [
        replace(prompt, token_ids=prompt.token_ids[extra[place] :]) if place in extra else prompt
        for place, prompt in enumerate(prompts)
    ]
    return repaired, len(extra)


def _too_long(over: Sequence[Prompt], max_model_len: int, max_tokens: int) -> CorpusError:
    first, longest = over[0], max(len(prompt.token_ids) for prompt in over)
    return CorpusError(
        f"{first.source}: prompt {first.id!r} has {len(first.token_ids)} tokens, more than the "
        f"{max_model_len - max_tokens} that max_model_len={max_model_len} leaves beside "
        f"max_tokens={max_tokens}; {len(over) - 1} other prompts are too long as well, the longest has "
        f"{longest}; shorten them, raise max_model_len, or set over_long to skip or truncate"
    )


def _truncate(prompt: Prompt, room: int, side: OverLong, bos: int | None) -> Prompt:
    ids = prompt.token_ids
    if len(ids) <= room:
        return prompt
    n_start = int(side == "truncate_left" and ids[0] == bos and room > 1)
    kept = ids[:room] if side == "truncate_right" else ids[:n_start] + ids[len(ids) - room + n_start :]
    said = f"{side}: {len(ids) - room} of {len(ids)} tokens cut"
    return replace(prompt, token_ids=kept, fields={**prompt.fields, "over_long": said})
