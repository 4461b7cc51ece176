"""From an experiment's settings to a run folder: plan, feed the engine, collect, prove, write."""

from __future__ import annotations

from easysteer_data.capture_run.estimate import CaptureEstimate, estimate_capture
from easysteer_data.capture_run.plan import CapturePlan, plan_capture
from easysteer_data.capture_run.run import CaptureOutcome, capture_corpus
from easysteer_data.capture_run.slices import ShardSlice, merge_slices

__all__ = [
    "CaptureEstimate",
    "CaptureOutcome",
    "CapturePlan",
    "ShardSlice",
    "capture_corpus",
    "estimate_capture",
    "merge_slices",
    "plan_capture",
]
