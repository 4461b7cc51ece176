"""A part of a prompt's text (an answer, a word, a letter) and the tokens that it lies in.

Pure functions of text, character offsets and token ids. Knows no engine and no corpus files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Occurrence = Literal["last", "first", "only"]
SpanTokens = Literal["all", "first", "last"]
Offsets = Sequence[tuple[int, int]]

_COLUMN = re.compile(r"\{([^{}]+)\}")
_BATCH = 1024  # prompts a call of the tokenizer, so that offsets of a big corpus never pile up


@dataclass(frozen=True, kw_only=True)
class Span:
    """Which part of each prompt's text; exactly one of the first three is given.

    Attributes:
        substring: the text itself; "{column}" stands for a field of the prompt, as in "{answer}".
        pattern: a regular expression; the part is its first group, or the whole match without one.
        chars: [start, stop) in characters, cut like a Python slice; a stop of None is the end.
        occurrence: which place counts where there are several; "only" refuses a second one.
        tokens: "all" tokens that share a character with the part, or its "first" or "last" one.

    Raises:
        SettingsError: none or several of the three are given, or a value can't be used.
    """

    substring: str | None = None
    pattern: str | None = None
    chars: tuple[int, int | None] | None = None
    occurrence: Occurrence = "last"
    tokens: SpanTokens = "all"

    def __post_init__(self) -> None:
        given = [name for name in ("substring", "pattern", "chars") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingsError(
                f"select.span: give one of substring, pattern and chars, not {' and '.join(given) or 'none'}"
            )
        for name, choices in (("occurrence", get_args(Occurrence)), ("tokens", get_args(SpanTokens))):
            if getattr(self, name) not in choices:
                raise SettingsError(
                    f"select.span.{name} is {getattr(self, name)!r}; choose {', '.join(choices)}"
                )
        if self.substring == "":
            raise SettingsError("select.span.substring is empty and would match everywhere")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise SettingsError(f"select.span.pattern {self.pattern!r}: {error}") from error

    def find(self, prompt: Prompt) -> tuple[int, int]:
        """Return the part's first character and the one after its last.

        Raises:
            CorpusError: it is not there, or is there twice and only one is allowed; names the prompt.
        """
        places = [place for place in self._places(prompt) if place[0] < place[1]]
        sought = next(value for value in (self.substring, self.pattern, self.chars) if value is not None)
        where = f"{prompt.source}: prompt {prompt.id!r}"
        if not places:
            raise CorpusError(f"{where} has no {sought!r} (select.span); its text ends {prompt.text[-60:]!r}")
        if self.occurrence == "only" and len(places) > 1:
            raise CorpusError(
                f"{where} has {sought!r} {len(places)} times (select.span); set occurrence to first or last"
            )
        return places[0 if self.occurrence == "first" else -1]

    def positions(self, prompt: Prompt, offsets: Offsets) -> tuple[int, ...]:
        """Return the positions of the part's tokens, ascending.

        Args:
            prompt: whose text is searched.
            offsets: for each token of that text, its first character and the one after its last; special
                tokens have no characters.

        Raises:
            CorpusError: as for `find`, or no token holds any of it.
        """
        start, stop = self.find(prompt)
        inside = [i for i, (first, after) in enumerate(offsets) if first < stop and after > max(start, first)]
        if not inside:
            raise CorpusError(
                f"{prompt.source}: prompt {prompt.id!r}: no token holds characters {start} to {stop}"
            )
        chosen = {"all": slice(None), "first": slice(1), "last": slice(-1, None)}[self.tokens]
        return tuple(inside[chosen])

    def _places(self, prompt: Prompt) -> Iterator[tuple[int, int]]:
        text = prompt.text
        if self.chars is not None:
            start, stop, _ = slice(*self.chars).indices(len(text))
            yield start, stop
        elif self.pattern is not None:
            for match in re.finditer(self.pattern, text):
                yield match.span(1 if match.re.groups else 0)
        elif self.substring is not None:
            sought = _COLUMN.sub(lambda column: _field(prompt, column.group(1)), self.substring)
            at = text.find(sought)
            while at >= 0:
                yield at, at + len(sought)
                at = text.find(sought, at + 1)


def find_spans(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, span: Span
) -> Iterator[tuple[int, ...]]:
    """Yield, prompt by prompt, the positions of the span's tokens among the prompt's own.

    Raises:
        SettingsError: the tokenizer can't tell the characters of its tokens.
        CorpusError: a prompt lacks the span, its tokens are not those of its text, or the span was cut off.
    """
    if not tokenizer.is_fast:
        raise SettingsError(
            f"select.span needs a fast tokenizer; {type(tokenizer).__name__} can't tell which characters its "
            "tokens hold"
        )
    for start in range(0, len(prompts), _BATCH):
        batch = prompts[start : start + _BATCH]
        # With and without special tokens: a rendered chat brings its own.
        encodings = [
            tokenizer(
                [prompt.text for prompt in batch],
                add_special_tokens=special,
                return_offsets_mapping=True,
                return_attention_mask=False,
                verbose=False,
            )
            for special in (True, False)
        ]
        for i, prompt in enumerate(batch):
            yield _among_own(prompt, span, [(e["input_ids"][i], e["offset_mapping"][i]) for e in encodings])


def _among_own(
    prompt: Prompt, span: Span, encodings: Sequence[tuple[Sequence[int], Offsets]]
) -> tuple[int, ...]:
    for token_ids, offsets in encodings:
        cut = _cut(tuple(token_ids), prompt.token_ids)
        if cut is None:
            continue
        n_kept, n_lost = cut
        own = [
            position if position < n_kept else position - n_lost
            for position in span.positions(prompt, offsets)
            if position < n_kept or position >= n_kept + n_lost
        ]
        if own and own[-1] < len(prompt.token_ids):
            return tuple(own)
        raise CorpusError(
            f"{prompt.source}: prompt {prompt.id!r}: what select.span seeks was truncated away; "
            "set capture.over_long to skip, or raise model.max_model_len"
        )
    raise CorpusError(
        f"{prompt.source}: prompt {prompt.id!r}: its tokens are not those of its text, so select.span can't "
        "find characters in them; select by position"
    )


def _cut(whole: tuple[int, ...], kept: tuple[int, ...]) -> tuple[int, int] | None:
    """How truncation made `kept` of `whole`: tokens before the cut, tokens cut out; None if it did not."""
    n_lost = len(whole) - len(kept)
    if n_lost < 0:
        return None
    if whole[: len(kept)] == kept:
        return len(kept), n_lost
    for n_start in (0, 1):  # truncation from the left may keep BOS
        if whole[:n_start] == kept[:n_start] and whole[n_start + n_lost :] == kept[n_start:]:
            return n_start, n_lost
    return None


def _field(prompt: Prompt, column: str) -> str:
    fields: Mapping[str, object] = prompt.fields
    if column not in fields:
        kept = ", ".join(fields) or "none"
        raise CorpusError(
            f"{prompt.source}: select.span names the column {column!r}, which is not kept with the prompts; "
            f"add it to corpus.fields (now: {kept})"
        )
    return str(fields[column])
