"""Kinds of probes, by name. A new one is a file here, a name in `ProbeKind`, a line below and a yaml."""

from __future__ import annotations

from typing import get_args

from easysteer_data.errors import RunError
from easysteer_data.probes.contract import Probe
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.kinds.attention_pooled import AttentionPooledProbe
from easysteer_data.probes.kinds.lda import LDAProbe
from easysteer_data.probes.kinds.logistic import LinearProbe
from easysteer_data.probes.kinds.mass_mean import MassMeanProbe
from easysteer_data.probes.kinds.mlp import MLPProbe
from easysteer_data.probes.kinds.ridge import RidgeProbe
from easysteer_data.settings import ProbeKind, ProbeSettings

__all__ = [
    "PROBE_KINDS",
    "AttentionPooledProbe",
    "LDAProbe",
    "LinearProbe",
    "MLPProbe",
    "MassMeanProbe",
    "RidgeProbe",
    "make_probe",
    "probe_class",
]

PROBE_KINDS: tuple[ProbeKind, ...] = get_args(ProbeKind)

_CLASSES: tuple[type[Probe], ...] = (
    LinearProbe,
    RidgeProbe,
    MassMeanProbe,
    LDAProbe,
    MLPProbe,
    AttentionPooledProbe,
)


def probe_class(kind: str) -> type[Probe]:
    """The class of a kind; KeyError if there is none of the name."""
    return {cls.kind: cls for cls in _CLASSES}[kind]


def make_probe(data: ProbeData, settings: ProbeSettings) -> Probe:
    """A probe of the settings' kind for the data's layers and labels.

    Raises:
        RunError: the kind can't learn such labels.
        SettingsError: a setting is out of range.
    """
    cls = probe_class(settings.kind)
    if data.task not in cls.tasks:
        found = "numbers" if data.task == "numeric" else "classes"
        able = [one.kind for one in _CLASSES if data.task in one.tasks]
        raise RunError(
            f"{data.datamodule.run.path} has {found} as labels, but a {settings.kind} probe needs"
            f" {'classes' if found == 'numbers' else 'numbers'}; use {' or '.join(able)}"
        )
    shape = {"layer_ids": list(data.layer_ids), "width": data.width, "label_names": list(data.label_names)}
    return cls.of_settings(shape, settings)
