"""Steering vectors: estimators of directions, figures on held-out groups, files. Pure torch and numpy.

Knows runs through the shards and serving rooms; neither vLLM nor Lightning.
"""

from __future__ import annotations

from easysteer_data.vectors.estimators import ESTIMATORS, Estimator, make_estimators
from easysteer_data.vectors.fit import FittedVectors, fit_vectors
from easysteer_data.vectors.gguf_file import export_gguf, import_gguf
from easysteer_data.vectors.npy_files import export_npy
from easysteer_data.vectors.report import vector_report_json, vector_table
from easysteer_data.vectors.result import EstimatorReport, LayerFigures, VectorReport
from easysteer_data.vectors.source import ContrastSource
from easysteer_data.vectors.steering_vector import SteeringVector, VectorProvenance, model_fingerprint
from easysteer_data.vectors.vector_file import load_vector, save_vector

__all__ = [
    "ESTIMATORS",
    "ContrastSource",
    "Estimator",
    "EstimatorReport",
    "FittedVectors",
    "LayerFigures",
    "SteeringVector",
    "VectorProvenance",
    "VectorReport",
    "export_gguf",
    "export_npy",
    "fit_vectors",
    "import_gguf",
    "load_vector",
    "make_estimators",
    "model_fingerprint",
    "save_vector",
    "vector_report_json",
    "vector_table",
]
