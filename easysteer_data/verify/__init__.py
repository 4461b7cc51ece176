"""Proves a captured run against Hugging Face: sampled prompts are run again and their rows compared."""

from __future__ import annotations

from easysteer_data.verify.bounds import Bounds, bounds_of
from easysteer_data.verify.report import Agreement, LayerResult, VerifyReport
from easysteer_data.verify.run import verify_run

__all__ = ["Agreement", "Bounds", "LayerResult", "VerifyReport", "bounds_of", "verify_run"]
