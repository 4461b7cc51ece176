"""What a driver and its actors tell each other: dicts of plain values, whatever carries them.

An actor never reads the corpus: a task brings its shard's prompts, tokenised and split by the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, overload

from easysteer_data import errors
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.corpus import LabelClasses
from easysteer_data.engine.wire import StreamShape
from easysteer_data.ledger import TokenisationLedger
from easysteer_data.model_facts import ModelFacts
from easysteer_data.row_selection import RowSelection
from easysteer_data.select import SelectSpec
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.shards.checked_json import JsonRecord
from easysteer_data.shards.journal import ShardEntry
from easysteer_data.types import Prompt, Stream

Message = dict[str, Any]
T = TypeVar("T")

# Another actor would end the same way.
_FATAL = (errors.ProofError, errors.SettingsError, errors.CorpusError, errors.UnsupportedEngineError)


class Places(Sequence[T]):
    """Some items of a long sequence, under the places that they have there.

    Args:
        start: place of the first of `items`.
        items: those that are there from the beginning.
    """

    def __init__(self, start: int = 0, items: Iterable[T] = ()) -> None:
        self._items: dict[int, T] = {}
        self.put(start, items)

    def put(self, start: int, items: Iterable[T]) -> None:
        """Add items, the first of them at the place `start`."""
        self._items.update(enumerate(items, start))

    def remove(self, places: Iterable[int]) -> None:
        """Let go of the items at some places."""
        for place in places:
            del self._items[place]

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            raise TypeError("places have no slices")
        if place not in self._items:
            raise IndexError(place)
        return self._items[place]


def plan_message(plan: CapturePlan) -> Message:
    """A plan without its prompts."""
    return {
        "settings": asdict(plan.settings),
        "facts": asdict(plan.facts),
        "corpus_sha256": plan.corpus_sha256,
        "labels": {"kind": plan.labels.kind, "names": list(plan.labels.names)},
        "ledger": asdict(plan.ledger),
        "max_model_len": plan.max_model_len,
    }


def plan_of(message: Message) -> CapturePlan:
    """The plan of a `plan_message`, without prompts: tasks bring them."""
    settings = build(ExperimentSettings, message["settings"])
    return CapturePlan(
        settings=settings,
        facts=ModelFacts(**message["facts"]),
        prompts=(),
        corpus_sha256=message["corpus_sha256"],
        selects=(),
        selection=RowSelection.from_settings(settings.select),
        n_rows=(),
        labels=LabelClasses(message["labels"]["kind"], tuple(message["labels"]["names"])),
        ledger=TokenisationLedger(**message["ledger"]),
        max_model_len=message["max_model_len"],
    )


def task_message(plan: CapturePlan, number: int, prompts: tuple[int, int]) -> Message:
    """A shard to be captured: its number and its prompts, `prompts` being their half-open range."""
    start, stop = prompts
    selects = (plan.selects[index] for index in range(start, stop))
    return {
        "number": number,
        "start": start,
        "prompts": [_prompt_message(plan.prompts[index]) for index in range(start, stop)],
        "selects": [None if select is None else select.to_wire() for select in selects],
    }


def prompts_of(task: Message) -> list[Prompt]:
    """The prompts of a `task_message`."""
    return [Prompt(**values) for values in task["prompts"]]


def selects_of(task: Message) -> list[SelectSpec | None]:
    """Which rows a `task_message` asks for, prompt by prompt."""
    return [None if wire is None else SelectSpec.from_wire(wire) for wire in task["selects"]]


def shapes_message(shapes: Mapping[Stream, StreamShape]) -> Message:
    """The streams' shapes."""
    return {stream: asdict(shape) for stream, shape in shapes.items()}


def shapes_of(message: Mapping[Stream, Message]) -> dict[Stream, StreamShape]:
    """The shapes of a `shapes_message`."""
    return {stream: StreamShape(**values) for stream, values in message.items()}


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a task.

    Attributes:
        entry: the shard's files, in the folder that the actor was given.
        n_tokens: tokens that the model read or made.
        gates: fault -> rows and layers that had it.
    """

    entry: ShardEntry
    n_tokens: int
    gates: Mapping[str, int]

    def to_message(self) -> Message:
        """A plain dict."""
        return {"entry": self.entry.to_json(), "n_tokens": self.n_tokens, "gates": dict(self.gates)}

    @classmethod
    def of(cls, message: Message) -> ShardResult:
        """Read it back.

        Raises:
            RunError: the record of the files is none.
        """
        entry = ShardEntry.from_json(JsonRecord(message["entry"], "an actor's answer"))
        return cls(entry, message["n_tokens"], message["gates"])


def failure_message(error: Exception) -> Message:
    """An exception of an actor's work, by name and text."""
    return {"failure": type(error).__name__, "text": str(error)}


def raise_fatal(message: Message) -> None:
    """Raise the failure again if it would happen anywhere."""
    for kind in _FATAL:
        if message["failure"] == kind.__name__:
            raise kind(message["text"])


def _prompt_message(prompt: Prompt) -> Message:
    return {field.name: getattr(prompt, field.name) for field in fields(prompt)}
