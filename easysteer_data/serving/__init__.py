"""The room between a run and its loaders: rows chosen, ordered, normalised, loaded. See README.md."""

from __future__ import annotations

from easysteer_data.serving.host import ranks
from easysteer_data.serving.layers import ServedLayers
from easysteer_data.serving.loader import (
    ActivationLoader,
    loader_arguments,
    resume_sampler,
    trained_state,
)
from easysteer_data.serving.normalise import NORMALISATIONS, Normaliser, fit_normaliser
from easysteer_data.serving.order import EpochOrder, ShuffleQuality, shuffle_quality
from easysteer_data.serving.rows import choose_rows
from easysteer_data.serving.split_rows import SplitRows

__all__ = [
    "NORMALISATIONS",
    "ActivationLoader",
    "EpochOrder",
    "Normaliser",
    "ServedLayers",
    "ShuffleQuality",
    "SplitRows",
    "choose_rows",
    "fit_normaliser",
    "loader_arguments",
    "ranks",
    "resume_sampler",
    "shuffle_quality",
    "trained_state",
]
