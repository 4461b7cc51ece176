"""Numbers and names as a reader wants them. Pure text."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "-"


def number(value: float | None) -> str:
    """A figure with three digits after the point, fewer for large ones; "-" for none."""
    if value is None:
        return NONE
    n_digits = 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{n_digits}f}"


def sentence(text: str) -> str:
    """The text with a capital letter at its start, where that starts a word."""
    return text[:1].upper() + text[1:] if text[1:2].isalpha() else text


def percent(share: float) -> str:
    """A share in words that stay on one line, as in "95 %"."""
    return f"{100 * share:g}\N{NO-BREAK SPACE}%"


def layers_name(layers: Sequence[int]) -> str:
    """Layers in words, as in "layers 10, 11, 12"."""
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))}"


def counts(values: dict[str, int]) -> str:
    """Counts in words, as in "276 train, 92 test"."""
    return ", ".join(f"{count:,} {name}" for name, count in values.items())


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name.lower())
