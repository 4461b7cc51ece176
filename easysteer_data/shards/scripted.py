"""Loops over blocks of rows as one call of TorchScript, during which other threads have the interpreter.

Called from Python block by block, the same operations scale to two threads and no further: each thread waits
for the interpreter after every one. For types that numba (`compiled.py`) does not know: float16 and float8.
TorchScript is deprecated in favour of compilers that would need a C++ compiler wherever rows are captured;
where it is missing, Python runs the function, more slowly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])


def scripted(function: F) -> F:
    """The function in TorchScript; its annotations must be classes and not texts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is deprecated
            made: F = torch.jit.script(function)
    except Exception:  # whatever a later release raises instead
        return function
    return made
