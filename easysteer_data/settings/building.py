"""How settings are read from plain values: unknown keys and wrong types are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from easysteer_data.errors import SettingsError

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a settings dataclass, and its nested ones, from plain values.

    Raises:
        SettingsError: an unknown key (names the nearest valid one), a missing key, or a wrong type.
    """
    _refuse_unknown(cls, values, "")
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise SettingsError("\n".join(_describe(dict(fault)) for fault in error.errors())) from error


def _refuse_unknown(cls: type, values: Mapping[str, Any], path: str) -> None:
    hints = get_type_hints(cls)
    valid = [f.name for f in fields(cls)]
    for key, value in values.items():
        if key not in valid:
            raise SettingsError(unknown_key(f"{path}{key}", [f"{path}{name}" for name in valid]))
        if isinstance(value, Mapping) and is_dataclass(hints[key]):
            _refuse_unknown(hints[key], value, f"{path}{key}.")


def unknown_key(key: str, valid: list[str]) -> str:
    """Return the message for a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"valid keys are {', '.join(valid)}"
    return f"unknown key {key!r}; {hint}"


def _describe(fault: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("constrained", "tuple[")))
    if fault["type"] == "missing":
        return f"{key}: must be given"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')} (got {fault['input']!r})"
