"""Capture activations on a stock vLLM into WebDataset shards, and serve them to probes and steering vectors.

Importing this package imports neither vllm nor lightning; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from easysteer_data.datamodule import ActivationDataModule
    from easysteer_data.engine.open import close_llm, open_llm
    from easysteer_data.hidden_states import CaptureResult, capture, capture_stream, generate
    from easysteer_data.notebook import Run, figures_of, fit_probe, fit_vector, open_run
    from easysteer_data.probes import LinearProbe
    from easysteer_data.select import SelectSpec
    from easysteer_data.shards import decode_safetensors, unpack_prompts, unpack_rows
    from easysteer_data.steering import ApplySpec, SteeringSpec, VectorSpec
    from easysteer_data.streaming_datamodule import StreamingDataModule
    from easysteer_data.vectors import SteeringVector, load_vector
    from easysteer_data.verify import verify_run

_HOMES = {
    "ActivationDataModule": "datamodule",
    "ApplySpec": "steering",
    "CaptureResult": "hidden_states",
    "LinearProbe": "probes",
    "Run": "notebook",
    "SelectSpec": "select",
    "SteeringSpec": "steering",
    "SteeringVector": "vectors",
    "StreamingDataModule": "streaming_datamodule",
    "VectorSpec": "steering",
    "capture": "hidden_states",
    "capture_stream": "hidden_states",
    "close_llm": "engine.open",
    "decode_safetensors": "shards",
    "figures_of": "notebook",
    "fit_probe": "notebook",
    "fit_vector": "notebook",
    "generate": "hidden_states",
    "load_vector": "vectors",
    "open_llm": "engine.open",
    "open_run": "notebook",
    "unpack_prompts": "shards",
    "unpack_rows": "shards",
    "verify_run": "verify",
}

__all__ = [
    "ActivationDataModule",
    "ApplySpec",
    "CaptureResult",
    "LinearProbe",
    "Run",
    "SelectSpec",
    "SteeringSpec",
    "SteeringVector",
    "StreamingDataModule",
    "VectorSpec",
    "capture",
    "capture_stream",
    "close_llm",
    "decode_safetensors",
    "figures_of",
    "fit_probe",
    "fit_vector",
    "generate",
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
