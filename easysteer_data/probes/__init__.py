"""Read-outs of rows: kinds of probes, controls, figures on held-out groups, weights on disk. See README.md.

Knows runs through the datamodule only.
"""

from __future__ import annotations

from easysteer_data.probes.contract import Probe, Training
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.details import BestLayer, CalibrationBin, RocCurve, ScoredPrompt
from easysteer_data.probes.fit import FittedProbe, fit_linear_probe, fit_probe, save_fitted
from easysteer_data.probes.kinds import (
    PROBE_KINDS,
    AttentionPooledProbe,
    LDAProbe,
    LinearProbe,
    MassMeanProbe,
    MLPProbe,
    RidgeProbe,
    make_probe,
)
from easysteer_data.probes.layer_result import Figure, LayerResult
from easysteer_data.probes.loggers import make_logger
from easysteer_data.probes.result import PositionResult, ProbeReport, Provenance, Transfer
from easysteer_data.probes.weights import load_probe, save_probe

__all__ = [
    "PROBE_KINDS",
    "AttentionPooledProbe",
    "BestLayer",
    "CalibrationBin",
    "Figure",
    "FittedProbe",
    "LDAProbe",
    "LayerResult",
    "LinearProbe",
    "MLPProbe",
    "MassMeanProbe",
    "PositionResult",
    "Probe",
    "ProbeData",
    "ProbeReport",
    "Provenance",
    "RidgeProbe",
    "RocCurve",
    "ScoredPrompt",
    "Training",
    "Transfer",
    "fit_linear_probe",
    "fit_probe",
    "load_probe",
    "make_logger",
    "make_probe",
    "save_fitted",
    "save_probe",
]
