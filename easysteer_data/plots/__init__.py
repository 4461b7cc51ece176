"""Figures of results as matplotlib figures, one idea a file. Takes plain numbers; knows no run, no report.

`to_svg` and `to_png` turn a figure into what a page or a folder holds.
"""

from __future__ import annotations

from easysteer_data.plots.calibration import CalibrationBin, calibration_curve
from easysteer_data.plots.confusion import confusion_matrix
from easysteer_data.plots.cosines import cosine_map
from easysteer_data.plots.curves import Curve, Flags, layer_curves
from easysteer_data.plots.dose_response import DoseLine, dose_response
from easysteer_data.plots.export import to_png, to_svg
from easysteer_data.plots.predictions import predicted_numbers
from easysteer_data.plots.roc import RocLine, roc_curve

__all__ = [
    "CalibrationBin",
    "Curve",
    "DoseLine",
    "Flags",
    "RocLine",
    "calibration_curve",
    "confusion_matrix",
    "cosine_map",
    "dose_response",
    "layer_curves",
    "predicted_numbers",
    "roc_curve",
    "to_png",
    "to_svg",
]
