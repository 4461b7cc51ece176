"""Which rows of a run are served, in which order, by which processes. Pure checks; knows no run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, cast, get_args

from easysteer_data.errors import SettingsError

T = TypeVar("T", "RowFilter", "RowOrder", "LoaderOptions")

Shuffle = Literal["rows", "blocks", "none"]
Balance = Literal["none", "undersample", "oversample", "weights"]
StartMethod = Literal["fork", "spawn", "forkserver"]
ServedDtype = Literal["float16", "bfloat16", "float32", "float64"]
DTYPES: tuple[ServedDtype, ...] = get_args(ServedDtype)
Normalisation = Literal["none", "center", "standardise", "unit_norm", "mean_norm"]
Tail = Literal["spread", "drop", "pad"]


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Which rows are served; every condition must hold. The default serves all.

    Attributes:
        positions: token positions; negative ones count from the prompt's end. None = all.
        last: of each prompt only the last row that the run holds.
        token_ids: tokens that were read there. None = all.
        fields: field of the corpus, or `id`, `group` or `label` -> the value, or a list of values, that a
            row's prompt must have.
        limit: at most this many rows of each split, drawn at random by the seed: a larger limit holds all
            rows of a smaller one. None = all.

    Raises:
        SettingsError: a value is out of range.
    """

    positions: tuple[int, ...] | None = None
    last: bool = False
    token_ids: tuple[int, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("positions", "token_ids"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(value))
        wanted = {name: _listed(value) for name, value in dict(self.fields).items()}
        object.__setattr__(self, "fields", wanted)
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"rows.limit is {self.limit}; use at least 1, or None for all rows")


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """The order of the train split's rows, drawn anew each epoch.

    Attributes:
        shuffle: `rows`: every order is equally likely. `blocks`: packs in random order, their rows mixed
            within a window, for disks that are slow to seek. `none`: the run's order.
        window_rows: how far `blocks` moves a row from its pack's place; the page cache should hold as many
            rows.
        balance: `undersample`: of every class as many rows as the rarest has, others each epoch.
            `oversample`: rows of rarer classes come several times, until every class has as many as the
            most frequent. `weights`: every row once, and batches hold `weight`, scikit-learn's "balanced"
            class weights.

    Raises:
        SettingsError: a value is none of these.
    """

    shuffle: Shuffle = "rows"
    window_rows: int = 65_536
    balance: Balance = "none"

    def __post_init__(self) -> None:
        check_choice("order.shuffle", self.shuffle, get_args(Shuffle))
        check_choice("order.balance", self.balance, get_args(Balance))
        if self.window_rows < 1:
            raise SettingsError(f"order.window_rows is {self.window_rows}; use at least 1")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How batches are loaded; the first three where num_workers is above zero.

    Attributes:
        persistent: keep them from one epoch to the next.
        start_method: how they start; None = torch's own way, but `spawn` beside an engine of this process.
        prefetch: batches that each one reads ahead.
        pinned: page-locked batches, which a GPU copies without waiting; None = where there is one.
        in_memory: copy the rows of a split into memory when it is first asked for, once on each rank: rows *
            layers * width in the storage dtype, or in float32 where that is float8_e4m3 or int8. A row's
            layers then lie together: worth it for many epochs of several narrow layers. Rows are otherwise
            read through the page cache. Needs num_workers = 0.

    Raises:
        SettingsError: a value is out of range.
    """

    persistent: bool = True
    start_method: StartMethod | None = None
    prefetch: int = 2
    pinned: bool | None = None
    in_memory: bool = False

    def __post_init__(self) -> None:
        if self.start_method is not None:
            check_choice("loading.start_method", self.start_method, get_args(StartMethod))
        if self.prefetch < 1:
            raise SettingsError(f"loading.prefetch is {self.prefetch}; use at least 1")


def check_workers(options: LoaderOptions, num_workers: int) -> None:
    """Raise SettingsError where rows in the memory of this process are to be served by others."""
    if options.in_memory and num_workers:
        raise SettingsError(
            f"loading.in_memory serves rows out of this process's memory: set num_workers to 0, it is "
            f"{num_workers}"
        )


def coerce_options(cls: type[T], value: T | Mapping[str, Any] | None, name: str) -> T:
    """Options from an instance, a mapping as a config holds it, or None for the defaults.

    Raises:
        SettingsError: an unknown key; the message lists the valid ones.
    """
    if isinstance(value, cls):
        return value
    given = dict(cast("Mapping[str, Any]", value or {}))
    valid = [f.name for f in fields(cls)]
    if unknown := sorted(set(given) - set(valid)):
        raise SettingsError(f"unknown key {name}.{unknown[0]}; valid keys are {', '.join(valid)}")
    return cls(**given)


def plain_options(options: RowFilter | RowOrder | LoaderOptions) -> dict[str, Any]:
    """The same as dicts, lists and plain values, for checkpoints that are loaded without running code."""
    return {key: _plain(value) for key, value in asdict(options).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def check_choice(name: str, value: str, valid: Iterable[str]) -> None:
    """Raise SettingsError unless an option's value is a valid one."""
    if value not in valid:
        raise SettingsError(f"{name} is {value!r}; choose one of {', '.join(valid)}")
