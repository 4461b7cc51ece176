r"""A prompt made from columns, as "{question}\nAnswer: {answer}". Knows no files and no chat templates."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

from easysteer_data.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Template:
    """Text pieces, each followed by the column to put there, None after the last."""

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, template: str) -> Template:
        """Read a template; `{{` and `}}` stand for braces.

        A column's name is all that stands between the braces, dots and spaces too: a template can't
        reach into a value, as str.format would let it.

        Raises:
            SettingsError: the braces don't match, a name is empty, holds ! or :, or there is no column.
        """
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise SettingsError(f"template {template!r}: {error}; write {{{{ for a brace") from error
        for _, column, format_spec, conversion in parsed:
            if column == "" or format_spec or conversion:
                raise SettingsError(
                    f"template {template!r}: write {{column}} with the name alone, without ! and :"
                )
        if all(column is None for _, column, _, _ in parsed):
            raise SettingsError(f"template {template!r} names no column, so all prompts would be alike")
        return cls(tuple((literal, column) for literal, column, _, _ in parsed))

    def render(self, value_of: Callable[[str], str]) -> str:
        """Return the prompt, asking `value_of` for the text of each column."""
        return "".join(
            literal if column is None else literal + value_of(column) for literal, column in self.pieces
        )
