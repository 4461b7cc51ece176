"""Classifiers on rows: training, figures on held-out groups, weights on disk.

Knows runs through the datamodule only.
"""

from __future__ import annotations

from easysteer_data.probes.fit import fit_linear_probe
from easysteer_data.probes.linear import LinearProbe
from easysteer_data.probes.result import LayerResult, ProbeReport
from easysteer_data.probes.weights import load_probe, save_probe

__all__ = ["LayerResult", "LinearProbe", "ProbeReport", "fit_linear_probe", "load_probe", "save_probe"]
