"""What others offer for the same rows, a few lines each; the bench runs those that are installed.

Each module has `open_peer(options, layers)`: it opens the peer with the arguments that a vLLM `LLM` takes and
returns a function that captures every prompt token of these layers and returns how many rows came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

PEERS = ("hugging_face", "extract_hidden_states", "vllm_lens")
Capture = Callable[[Sequence[dict[str, list[int]]]], int]


def open_peer(
    name: str, options: dict[str, Any], layers: Sequence[int], prompts: Sequence[dict[str, list[int]]]
) -> Capture | str:
    """The peer's capture once it has run these prompts, or why there is none here.

    A peer may not be installed, refuse the options, or open and then fail.
    """
    try:
        capture: Capture = import_module(f"peers.{name}").open_peer(options, layers)
        capture(prompts)
    except Exception as error:  # whatever a peer raises, the bench goes on without it
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return capture
