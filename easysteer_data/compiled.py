"""Loops compiled by numba: one call does all of it, while other threads have the interpreter.

numba, since it comes with vLLM and needs no compiler. Not to be imported before a loop is needed: it takes
0.4 s to load. Compiled loops are kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from llvmlite.binding import ffi
from numba import njit

# Before an engine starts in this process, vLLM 0.32 on a CPU reads the __dict__ of whatever modules hold, and
# fails at llvmlite's library, which answers with a function of that name.
with suppress(AttributeError):
    ffi.lib._fntab.setdefault("__dict__", {})

# No fast maths: sums keep their order, so that equal rows give equal bits on every machine.
_RULES = {"nogil": True, "error_model": "numpy"}


def compiled(function: Callable[..., Any]) -> Any:
    """The function as machine code, made when it is first called with arguments of some types."""
    try:
        return njit(cache=True, **_RULES)(function)
    except RuntimeError:  # no folder to keep it in: compiled in each process
        return njit(**_RULES)(function)
