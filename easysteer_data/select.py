"""Which positions of a prompt and its completion are kept: one language for capture and steering.

Pure rules over positions and token ids, resolved with numpy. Knows nothing of vLLM, batches or
tensors, and imports nothing of this package but the errors.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from easysteer_data.errors import SettingsError

UNKNOWN_TOKEN = -1  # a generated token that the worker can't know yet (async scheduling)

_PHASES = ("prompt", "generation")
_NO_END = sys.maxsize  # length of a completion: it has no known end
_INT64 = np.iinfo(np.int64)

_Integers = Sequence[int] | Set[int]
_Window = Sequence[int | None]
_Ids = npt.NDArray[np.integer[Any]]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class SelectSpec:
    """A selection of positions: the union of its includes, less the union of its excludes.

    Prompt and generation are selected apart; a phase without an include gives no rows. Excludes
    always win. Lists may come in any order and with repeats; they are held as sorted tuples, so specs
    that list the same things are equal and hash alike. Windows are half-open (start, stop) and cut
    like Python's slices; stop=None means the end.

    Prompt positions and bounds below 0 count from the end of the whole prompt, never of a prefill
    chunk. A position past the prompt's end means its last token, in excludes too (`warn_clamped`
    tells the user); one before the prompt's start matches no token. Decode step k is the k-th
    generated token (0-based) as the model's input, at absolute position prompt length + k.

    Attributes:
        prompt: "all" for every prompt token.
        generation: "all" for every generated token that the model reads.
        prompt_tokens: token ids, wherever they occur in the prompt.
        prompt_positions: prompt positions.
        prompt_window: a range of prompt positions.
        generation_tokens: token ids, wherever they occur in the completion.
        generation_positions: decode steps, never negative.
        generation_window: a range of decode steps, never negative.
        exclude_prompt_tokens: never selected, and so for the five fields after it; each is read like
            the include of its name.

    Raises:
        SettingsError: a value can't be used, no include is set, or an exclude is set for a phase that
            has no include.
    """

    prompt: Literal["all"] | None = None
    generation: Literal["all"] | None = None
    prompt_tokens: _Integers | None = None
    prompt_positions: _Integers | None = None
    prompt_window: _Window | None = None
    generation_tokens: _Integers | None = None
    generation_positions: _Integers | None = None
    generation_window: _Window | None = None
    exclude_prompt_tokens: _Integers | None = None
    exclude_prompt_positions: _Integers | None = None
    exclude_prompt_window: _Window | None = None
    exclude_generation_tokens: _Integers | None = None
    exclude_generation_positions: _Integers | None = None
    exclude_generation_window: _Window | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                object.__setattr__(self, field.name, _checked(field.name, value))
        if all(phase.include is None for phase in self._phases):
            raise SettingsError(
                "the selection has no include and selects nothing: set prompt='all', generation='all' "
                "or another prompt_ or generation_ field"
            )
        for name, phase in zip(_PHASES, self._phases, strict=True):
            if phase.include is None and phase.exclude is not None:
                raise SettingsError(
                    f"exclude_{name}_ fields are set, but nothing of the {name} is included: "
                    f"add {name}='all' or another include, or leave the excludes out"
                )

    @property
    def uses_generation(self) -> bool:
        """Whether generated tokens can be selected."""
        return self._phases[1].include is not None

    @cached_property
    def whole_prompt(self) -> bool | None:
        """True where every prompt token is selected, False where none can be, None where it depends."""
        return self._phases[0].whole

    @cached_property
    def whole_generation(self) -> bool | None:
        """The same of generated tokens."""
        return self._phases[1].whole

    def mask(self, prompt_len: int, start: int, token_ids: _Ids) -> _Mask:
        """Which positions of a chunk are selected; a sequence's mask is the same however it is cut.

        Args:
            prompt_len: tokens of the whole prompt.
            start: absolute position of the chunk's first token, 0 at the prompt's start.
            token_ids: int [n], the tokens at positions start to start + n - 1.

        Returns:
            bool [n], True where selected.

        Raises:
            ValueError: a token that a clause has to read is unknown (negative); see `candidates`.
        """
        for phase, _, _, ids in self._parts(prompt_len, start, token_ids):
            if phase.reads_tokens and (ids < 0).any():
                raise ValueError(
                    f"the selection reads a token from {start} on that is unknown: see candidates"
                )
        return self.candidates(prompt_len, start, token_ids)

    def candidates(self, prompt_len: int, start: int, token_ids: _Ids) -> _Mask:
        """Which positions of a chunk may be selected, for a worker that runs before all tokens are known.

        An unknown token (negative: `UNKNOWN_TOKEN`) matches every token include and no token exclude,
        so nothing that `mask` selects later is missing. Store the rows of these positions, and keep
        those of `mask` once the tokens are known. Arguments and result as for `mask`, to which it is
        equal where all tokens are known.
        """
        parts = self._parts(prompt_len, start, token_ids)
        masks = [phase.candidates(n_phase, first, ids) for phase, n_phase, first, ids in parts]
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def max_rows(self, prompt_token_ids: Sequence[int], n_steps: int = 0) -> int:
        """Most rows that a prompt can give; exact if all steps run and no clause reads their tokens.

        Args:
            prompt_token_ids: the whole prompt.
            n_steps: decode steps that read a generated token: max_tokens - 1.
        """
        whole_prompt, whole_generation = self.whole_prompt, self.whole_generation
        if whole_prompt is not None and (n_steps == 0 or whole_generation is not None):
            return whole_prompt * len(prompt_token_ids) + bool(whole_generation) * n_steps
        prompt = np.asarray(prompt_token_ids, dtype=np.int64)
        token_ids = np.concatenate((prompt, np.full(n_steps, UNKNOWN_TOKEN)))
        return int(self.candidates(len(prompt), 0, token_ids).sum())

    def clamped(self, prompt_len: int) -> tuple[int, ...]:
        """The included and excluded positions past the end of a prompt of this length, sorted."""
        positions = {*(self.prompt_positions or ()), *(self.exclude_prompt_positions or ())}
        return tuple(sorted(position for position in positions if position >= prompt_len))

    def to_wire(self) -> dict[str, Any]:
        """A dict for JSON or msgpack: all fourteen keys in field order, lists, None where unset."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SelectSpec:
        """The spec of a `to_wire` dict, or of one written by hand, where keys may be left out.

        Raises:
            SettingsError: not a mapping, an unknown key, or a value that the constructor refuses.
        """
        if not isinstance(wire, Mapping):
            raise SettingsError(f"a selection is a SelectSpec or a dict of its fields, not {wire!r}")
        names = [field.name for field in fields(cls)]
        for key in wire:
            if key not in names:
                nearest = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)[0]
                raise SettingsError(f"unknown selection field {key!r}: the nearest valid name is {nearest!r}")
        return cls(**wire)

    @cached_property
    def _phases(self) -> tuple[_Phase, _Phase]:
        prompt, generation = (_Phase(self._clauses(x), self._clauses(f"exclude_{x}")) for x in _PHASES)
        return prompt, generation

    def _clauses(self, prefix: str) -> _Clauses | None:
        everything = getattr(self, prefix, None) is not None
        tokens, positions = (getattr(self, f"{prefix}_{kind}") or () for kind in ("tokens", "positions"))
        window = getattr(self, f"{prefix}_window")
        if not (everything or tokens or positions or window):
            return None
        return _Clauses(everything, np.array(tokens, np.int64), np.array(positions, np.int64), window)

    def _parts(self, prompt_len: int, start: int, ids: _Ids) -> list[tuple[_Phase, int, int, _Ids]]:
        """A chunk cut at the prompt's end: phase, its length, the part's first place in it, the tokens."""
        prompt, generation = self._phases
        n_prompt = prompt_len - start
        if n_prompt >= len(ids):
            return [(prompt, prompt_len, start, ids)]
        if n_prompt <= 0:
            return [(generation, _NO_END, -n_prompt, ids)]
        return [(prompt, prompt_len, start, ids[:n_prompt]), (generation, _NO_END, 0, ids[n_prompt:])]


def coerce_select(value: SelectSpec | Mapping[str, Any] | None) -> SelectSpec | None:
    """The selection that a caller gave as a spec or as its wire dict; None stays None.

    Raises:
        SettingsError: anything else, or a dict that `SelectSpec.from_wire` refuses.
    """
    return value if value is None or isinstance(value, SelectSpec) else SelectSpec.from_wire(value)


def max_rows(token_ids: Sequence[int], select: SelectSpec | None, n_steps: int) -> int:
    """Most rows that a prompt can give; arguments as for `SelectSpec.max_rows`, None = all rows."""
    return len(token_ids) + n_steps if select is None else select.max_rows(token_ids, n_steps)


def select_from_lists(token_ids: _Integers | None, positions: _Integers | None) -> SelectSpec | None:
    """The union of tokens, of prompt and completion alike, and prompt positions; None without either.

    Raises:
        SettingsError: a list is empty, or does not hold token ids (or positions).
    """
    if token_ids is None and positions is None:
        return None
    tokens = None if token_ids is None else _integers("token_ids", token_ids, may_be_negative=False)
    places = None if positions is None else _integers("positions", positions, may_be_negative=True)
    return SelectSpec(prompt_tokens=tokens, generation_tokens=tokens, prompt_positions=places)


def warn_clamped(selects: Sequence[SelectSpec | None], prompt_lens: Sequence[int]) -> None:
    """Warn, once for all prompts, of positions that stand for the last token of a shorter prompt.

    Args:
        selects: the selection of each prompt; None has no positions.
        prompt_lens: tokens of each prompt.
    """
    pairs = enumerate(zip(selects, prompt_lens, strict=True))
    past_end = [(i, n, past) for i, (spec, n) in pairs if spec is not None and (past := spec.clamped(n))]
    if past_end:
        index, n_tokens, past = past_end[0]
        message = (
            f"prompt {index} has {n_tokens} tokens, so position {', '.join(map(str, past))} means its last "
            f"token, position {n_tokens - 1}; {len(past_end)} of {len(prompt_lens)} prompts are too short"
        )
        warnings.warn(message, UserWarning, stacklevel=2)


class _Clauses(NamedTuple):
    """The includes, or the excludes, of one phase."""

    everything: bool
    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    window: tuple[int, int | None] | None

    def match(self, n_phase: int, first: int, ids: _Ids) -> _Mask:
        """Match known tokens, and all places from `first` on, of a phase of `n_phase` tokens."""
        matched: _Mask = np.full(len(ids), self.everything)
        if len(self.tokens):
            # The tokens are sorted; np.isin costs several times as much on a decode step's one token.
            matched |= self.tokens.take(np.searchsorted(self.tokens, ids), mode="clip") == ids
        if len(self.positions):
            from_start = np.where(self.positions < 0, self.positions + n_phase, self.positions)
            places = np.minimum(from_start, n_phase - 1) - first
            matched[places[(places >= 0) & (places < len(ids))]] = True
        if self.window is not None:
            start, stop, _ = slice(*self.window).indices(n_phase)
            matched[max(start - first, 0) : max(stop - first, 0)] = True
        return matched


class _Phase(NamedTuple):
    """What is selected of the prompt, or of the generation."""

    include: _Clauses | None
    exclude: _Clauses | None

    @property
    def whole(self) -> bool | None:
        if self.include is None:
            return False
        return True if self.include.everything and self.exclude is None else None

    @property
    def reads_tokens(self) -> bool:
        return any(clauses is not None and len(clauses.tokens) for clauses in self)

    def candidates(self, n_phase: int, first: int, ids: _Ids) -> _Mask:
        if self.include is None:
            return np.zeros(len(ids), dtype=np.bool_)
        selected = self.include.match(n_phase, first, ids)
        if len(self.include.tokens):
            selected |= ids < 0
        return selected if self.exclude is None else selected & ~self.exclude.match(n_phase, first, ids)


def _checked(name: str, value: object) -> object:
    """A field's value in the form in which the spec holds it."""
    if name in _PHASES:
        if not (isinstance(value, str) and value == "all"):
            raise SettingsError(f"{name}={value!r}: must be 'all'; {name}_positions takes single ones")
        return value
    if name.endswith("_window"):
        return _window(name, value, may_be_negative="prompt" in name)
    return _integers(name, value, may_be_negative=name.endswith("prompt_positions"))


def _integers(name: str, value: object, *, may_be_negative: bool) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Set):
        raise SettingsError(f"{name}={value!r}: must be a list of integers")
    if not value:
        raise SettingsError(f"{name}={value!r}: an empty list matches nothing; leave {name} out or fill it")
    return tuple(sorted({_integer(name, number, may_be_negative=may_be_negative) for number in value}))


def _window(name: str, value: object, *, may_be_negative: bool) -> tuple[int, int | None]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or len(value) != 2:
        raise SettingsError(f"{name}={value!r}: must be two integers (start, stop); stop may be None")
    start = _integer(name, value[0], may_be_negative=may_be_negative)
    stop = None if value[1] is None else _integer(name, value[1], may_be_negative=may_be_negative)
    # Bounds of mixed signs can cross only once the prompt's length is known, save for a stop of 0.
    if stop is not None and (stop == 0 or ((start < 0) == (stop < 0) and stop <= start)):
        raise SettingsError(f"{name}={(start, stop)} is empty: stop comes after start; None is the end")
    return start, stop


def _integer(name: str, value: object, *, may_be_negative: bool) -> int:
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or not (_INT64.min if may_be_negative else 0) <= number <= _INT64.max:
        wanted = "a 64-bit integer" + ("" if may_be_negative else " of 0 or more")
        raise SettingsError(f"{name}: {value!r} is not {wanted}")
    return number
