"""Two JSON trees compared for people: one line for each value that differs. Knows no key."""

from __future__ import annotations

import json
from collections.abc import Mapping

_ABSENT = "(absent)"
_MAX_SHOWN = 100  # characters of a value; a plan of a thousand shards helps nobody


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Lines `dotted.key: old -> new`, sorted by key, values as JSON, long ones cut."""
    before, after = _leaves(old), _leaves(new)
    return [
        f"{key}: {_shown(before.get(key, _ABSENT))} -> {_shown(after.get(key, _ABSENT))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _leaves(value: object, prefix: str = "") -> dict[str, str]:
    """Dotted key -> JSON text of each value that is no non-empty object; a list is one value."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: json.dumps(value, sort_keys=True, ensure_ascii=False)}
    leaves: dict[str, str] = {}
    for key, item in value.items():
        leaves |= _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
