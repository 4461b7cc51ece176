"""Capture activations on a stock vLLM into WebDataset shards, and serve them to probes and steering vectors.

Importing this package imports neither vllm nor lightning; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from easysteer_data.datamodule import ActivationDataModule
    from easysteer_data.engine.open import close_llm, open_llm
    from easysteer_data.hidden_states import CaptureResult, capture
    from easysteer_data.probes import LinearProbe
    from easysteer_data.select import SelectSpec
    from easysteer_data.shards import Run, decode_safetensors, open_run, unpack_prompts, unpack_rows
    from easysteer_data.streaming_datamodule import StreamingDataModule
    from easysteer_data.vectors import SteeringVector, load_vector
    from easysteer_data.verify import verify_run

_HOMES = {
    "ActivationDataModule": "datamodule",
    "CaptureResult": "hidden_states",
    "LinearProbe": "probes",
    "Run": "shards",
    "SelectSpec": "select",
    "SteeringVector": "vectors",
    "StreamingDataModule": "streaming_datamodule",
    "capture": "hidden_states",
    "close_llm": "engine.open",
    "decode_safetensors": "shards",
    "load_vector": "vectors",
    "open_llm": "engine.open",
    "open_run": "shards",
    "unpack_prompts": "shards",
    "unpack_rows": "shards",
    "verify_run": "verify",
}

__all__ = [
    "ActivationDataModule",
    "CaptureResult",
    "LinearProbe",
    "Run",
    "SelectSpec",
    "SteeringVector",
    "StreamingDataModule",
    "capture",
    "close_llm",
    "decode_safetensors",
    "load_vector",
    "open_llm",
    "open_run",
    "unpack_prompts",
    "unpack_rows",
    "verify_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
