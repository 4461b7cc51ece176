"""Prompts in, the same prompts with token ids and a ledger of them out. Knows no engine and no corpus files.

Beside the engine the one module that may import transformers, and only when a tokenizer is loaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OverLong = Literal["fail", "skip", "truncate_left", "truncate_right"]

# What the Hugging Face hub takes for a repository's name; any other text must be a folder.
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")

# Prompts a call: enough to keep all cores busy, few enough that the offsets of a big corpus never pile up.
_BATCH = 1024


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
) -> tuple[list[Prompt], TokenisationLedger]:
    """Tokenise all prompts as vLLM tokenises a text prompt, and find the unfit ones before a run starts.

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

    Raises:
        CorpusError: a prompt is too long, has no tokens or begins with two BOS tokens; names it.
        SettingsError: the window has no room for a prompt, or the policy is unknown.
    """
    if over_long not in get_args(OverLong):
        raise SettingsError(f"over_long is {over_long!r}; choose one of {', '.join(get_args(OverLong))}")
    if max_tokens < 1 or max_tokens >= max_model_len:
        raise SettingsError(
            f"max_tokens={max_tokens} must be 1 or more and below max_model_len={max_model_len}"
        )
    if not prompts:
        raise CorpusError("there are no prompts to tokenise")
    tokenised = [
        replace(prompt, token_ids=ids)
        for prompt, ids in zip(prompts, _token_ids(prompts, tokenizer), strict=True)
    ]
    _check_starts(tokenised, tokenizer)
    room = max_model_len - max_tokens
    over = [prompt for prompt in tokenised if len(prompt.token_ids) > room]
    if over and (over_long == "fail" or (over_long == "skip" and len(over) == len(tokenised))):
        raise _too_long(over, max_model_len, max_tokens)
    if over_long == "skip":
        kept = [prompt for prompt in tokenised if len(prompt.token_ids) <= room]
        fitted = [replace(prompt, index=i) for i, prompt in enumerate(kept)]
        return fitted, replace(_ledger(fitted, tokenizer), skipped=tuple(prompt.id for prompt in over))
    fitted = [_truncate(prompt, room, over_long, tokenizer.bos_token_id) for prompt in tokenised]
    return fitted, replace(_ledger(fitted, tokenizer), n_truncated=len(over))


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
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


def _token_ids(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(prompts), _BATCH):
        texts = [prompt.text for prompt in prompts[start : start + _BATCH]]
        # verbose=False: the window is checked here, against the engine's and not the tokenizer's length.
        encoded = tokenizer(texts, add_special_tokens=True, return_attention_mask=False, verbose=False)
        yield from map(tuple, encoded["input_ids"])


def _check_starts(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> None:
    bos = tokenizer.bos_token_id
    for prompt in prompts:
        if not prompt.token_ids:
            raise CorpusError(f"{prompt.source}: prompt {prompt.id!r} has no tokens; vLLM can't run it")
        if bos is not None and prompt.token_ids[:2] == (bos, bos):
            raise CorpusError(
                f"{prompt.source}: prompt {prompt.id!r} begins with two BOS tokens: the text starts with "
                f"{tokenizer.bos_token!r}, which the tokenizer adds; remove it from the text"
            )


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


def _ledger(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> TokenisationLedger:
    lengths = [len(prompt.token_ids) for prompt in prompts]
    bos = tokenizer.bos_token_id
    return TokenisationLedger(
        n_prompts=len(prompts),
        n_tokens=sum(lengths),
        min_prompt_tokens=min(lengths),
        max_prompt_tokens=max(lengths),
        bos_token_id=bos,
        n_bos=sum(prompt.token_ids[0] == bos for prompt in prompts),
        tokenizer_class=type(tokenizer).__name__,
        tokenizer_sha256=tokenizer_fingerprint(tokenizer),
    )
