"""Which rows of each prompt an experiment keeps: a SelectSpec, a span of the text, a reduction to one row.

Knows prompts and tokenizers, no engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args, overload

from easysteer_data.errors import SettingsError
from easysteer_data.select import SelectSpec, coerce_select
from easysteer_data.spans import Span, find_spans
from easysteer_data.types import Prompt, Reduce

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPAN_KEYS = frozenset(field.name for field in fields(Span))
_SPAN_SOUGHT = ("substring", "pattern", "chars")


@dataclass(frozen=True, slots=True)
class RowSelection:
    """An experiment's choice of rows.

    Attributes:
        spec: positions that are chosen alike in every prompt; None with no span = every row.
        span: a part of the text whose tokens are chosen too.
        reduce: one row a prompt, the "last" or the "mean" of those chosen; None = all of them.
    """

    spec: SelectSpec | None
    span: Span | None = None
    reduce: Reduce | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> RowSelection:
        """Read the config group `select`: the fields of SelectSpec, `span` and `reduce`; None = unset.

        Raises:
            SettingsError: an unknown key or a value that can't be used.
        """
        given = {name: value for name, value in (settings or {}).items() if value is not None}
        reduce = given.pop("reduce", None)
        if reduce not in (None, *get_args(Reduce)):
            raise SettingsError(f"select.reduce is {reduce!r}; choose last, mean or null")
        span = _span(given.pop("span", None))
        return cls(coerce_select(given) if given else None, span, reduce)

    def specs(
        self, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[SelectSpec | None]:
        """Return each prompt's own selection; those of spans are made when they are asked for.

        Raises:
            CorpusError: a prompt lacks the span; names it.
        """
        if self.span is None:
            return [self.spec] * len(prompts)
        return _OwnSpecs(self._with, find_spans(prompts, tokenizer, self.span))

    def to_json(self) -> dict[str, object] | None:
        """What of it determines the rows, None where every row is kept."""
        chosen: dict[str, object] = {} if self.spec is None else self.spec.to_wire()
        if self.span is not None:
            chosen["span"] = asdict(self.span)
        if self.reduce is not None:
            chosen["reduce"] = self.reduce
        return chosen or None

    def _with(self, positions: Sequence[int]) -> SelectSpec:
        if self.spec is None:
            return SelectSpec(prompt_positions=positions)
        return replace(self.spec, prompt_positions=(*(self.spec.prompt_positions or ()), *positions))


class _OwnSpecs(Sequence[SelectSpec]):
    """Specs that differ in their positions alone: of each, its positions are all that is kept."""

    def __init__(
        self, with_positions: Callable[[Sequence[int]], SelectSpec], positions: Iterable[Sequence[int]]
    ) -> None:
        self._with_positions = with_positions
        self._positions = array("i")
        self._stops = array("q")
        for of_prompt in positions:
            self._positions.extend(of_prompt)
            self._stops.append(len(self._positions))

    def __len__(self) -> int:
        return len(self._stops)

    @overload
    def __getitem__(self, place: int) -> SelectSpec: ...
    @overload
    def __getitem__(self, place: slice) -> list[SelectSpec]: ...
    def __getitem__(self, place: int | slice) -> SelectSpec | list[SelectSpec]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self[index] for index in places]
        start = self._stops[places - 1] if places else 0
        return self._with_positions(self._positions[start : self._stops[places]].tolist())


def _span(value: object) -> Span | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise SettingsError(f"select.span is {value!r}; give its fields: {', '.join(sorted(_SPAN_KEYS))}")
    unknown = sorted(set(value) - _SPAN_KEYS)
    if unknown:
        raise SettingsError(
            f"unknown key select.span.{unknown[0]}; valid are {', '.join(sorted(_SPAN_KEYS))}"
        )
    given = {name: item for name, item in value.items() if item is not None}
    if not any(name in given for name in _SPAN_SOUGHT):
        return None
    if "chars" in given:
        given["chars"] = _chars(given["chars"])
    return Span(**given)


def _chars(value: object) -> tuple[int, int | None]:
    if isinstance(value, Sequence) and len(value) == 2:
        start, stop = value
        if type(start) is int and (stop is None or type(stop) is int):
            return start, stop
    raise SettingsError(f"select.span.chars is {value!r}; give [start, stop], a stop of null is the end")
