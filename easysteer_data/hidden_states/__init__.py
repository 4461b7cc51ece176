"""The capture API: hidden states, attention heads and router logits of prompts, on a stock vLLM.

Follows `easysteer.hidden_states` in names, arguments and meaning.
"""

from __future__ import annotations

from easysteer_data.hidden_states.capture import capture
from easysteer_data.hidden_states.generate import generate
from easysteer_data.hidden_states.result import CaptureResult, RowLabels
from easysteer_data.hidden_states.stream import capture_stream
from easysteer_data.hidden_states.wrappers import (
    get_all_hidden_states_generate,
    get_moe_router_logits_generate,
)

__all__ = [
    "CaptureResult",
    "RowLabels",
    "capture",
    "capture_stream",
    "generate",
    "get_all_hidden_states_generate",
    "get_moe_router_logits_generate",
]
