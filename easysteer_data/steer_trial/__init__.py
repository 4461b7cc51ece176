"""Trials of steering vectors: completions over a grid of layers and scales, scored, and the scales of use.

Knows vectors, probes and runs by their public names, and the engine through `generate` and `capture`.
"""

from __future__ import annotations

from easysteer_data.steer_trial.plan import TrialPlan, plan_trial
from easysteer_data.steer_trial.report import steer_report_json, steer_table
from easysteer_data.steer_trial.result import Cell, Curve, Figure, SteerReport
from easysteer_data.steer_trial.trial import run_trial

__all__ = [
    "Cell",
    "Curve",
    "Figure",
    "SteerReport",
    "TrialPlan",
    "plan_trial",
    "run_trial",
    "steer_report_json",
    "steer_table",
]
