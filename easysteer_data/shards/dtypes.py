"""The element types that rows arrive and rest in, under the names they go by. Knows no file."""

from __future__ import annotations

import torch

STORAGE_DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float8_e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}

CAPTURE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Storage types that need a scale per row, with the value that a row's largest element is stored as.
SCALED_PEAKS: dict[torch.dtype, float] = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}

SAFETENSORS_NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}


def holds_exactly(storage: torch.dtype, captured: torch.dtype) -> bool:
    """Whether every value of the captured type is one of the storage type."""
    return storage not in SCALED_PEAKS and torch.promote_types(storage, captured) == storage
