"""Proves a captured run against Hugging Face: sampled prompts are run again and their rows compared."""

from __future__ import annotations

from easysteer_data.verify.report import Agreement, Bounds, LayerResult, VerifyReport
from easysteer_data.verify.run import verify_run

__all__ = ["Agreement", "Bounds", "LayerResult", "VerifyReport", "verify_run"]
