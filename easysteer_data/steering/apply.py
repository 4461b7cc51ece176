"""Where a steering vector acts: the selection language of capture, under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from easysteer_data.errors import SettingsError
from easysteer_data.select import SelectSpec


class ApplySpec(SelectSpec):
    """The tokens that a vector steers: fields, rules and wire form of SelectSpec.

    A token is steered in the step that reads it, so `prompt_positions=[-1]` acts on the choice of the first
    generated token, and decode step 0 on the choice of the second.

    Raises:
        SettingsError: as SelectSpec does.
    """

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except SettingsError as error:
            raise SettingsError(f"ApplySpec: {error}") from None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ApplySpec:
        """The spec of a `to_wire` dict, or of one written by hand, where keys may be left out.

        Raises:
            SettingsError: not a mapping, an unknown key, or a value that the constructor refuses.
        """
        try:
            # Its own rules first: they tell of the whole dict.
            return cls(**SelectSpec.from_wire(wire).to_wire())
        except SettingsError as error:
            message = str(error).removeprefix("ApplySpec: ")
            raise SettingsError(f"ApplySpec: {message}") from None


def coerce_apply(value: SelectSpec | Mapping[str, Any] | None) -> ApplySpec | None:
    """The ApplySpec that a caller gave as such, as a SelectSpec or as a dict; None, every token, stays None.

    Raises:
        SettingsError: anything else, or a dict that `ApplySpec.from_wire` refuses.
    """
    if value is None or isinstance(value, ApplySpec):
        return value
    return ApplySpec.from_wire(value.to_wire() if isinstance(value, SelectSpec) else value)
