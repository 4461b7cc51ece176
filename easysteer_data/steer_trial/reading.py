"""What reads the rows of completions: a probe on disk, or the steering vector itself. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.probes import load_probe
from easysteer_data.vectors import SteeringVector


@dataclass(frozen=True, eq=False)
class Reading:
    """A score of a text by its rows of one layer.

    Attributes:
        layer: decoder block.
        title: a few words for an axis.
        meaning: what it reads, with what and where.
        score: the text's rows [n, width] of any floating dtype -> their mean score.
    """

    layer: int
    title: str
    meaning: str
    score: Callable[[torch.Tensor], float]


def vector_reading(vector: SteeringVector, layer: int) -> Reading:
    """The projection on a steering vector's unit direction.

    Raises:
        SettingsError: the vector lacks the layer.
    """
    direction = vector.at([layer]).directions[layer].double()
    return Reading(
        layer,
        f"projection on the vector, layer {layer}",
        f"projection of the completion's rows of layer {layer} on the vector's own direction; "
        "captured without steering, mean over the completion",
        lambda rows: float(torch.mv(rows.double(), direction).mean()),
    )


def probe_reading(path: Path, layer: int) -> Reading:
    """The logit of a probe of two classes.

    Raises:
        RunError: there is no such file, or it holds no probe.
        SettingsError: the probe has another number of classes, or lacks the layer.
    """
    probe = load_probe(path)
    if len(probe.label_names) != 2:
        raise SettingsError(
            f"{path}: a probe of {len(probe.label_names)} classes gives no single score; set "
            "steer.reading.probe=vector, or train one of two classes"
        )
    if layer not in probe.layer_ids:
        raise SettingsError(
            f"{path}: the probe has no layer {layer}, only {', '.join(map(str, probe.layer_ids))}; set "
            "steer.reading.layer"
        )
    place, n_layers = probe.layer_ids.index(layer), len(probe.layer_ids)

    @torch.inference_mode()
    def score(rows: torch.Tensor) -> float:
        # A probe reads all its layers at once; the rows stand in for those that are not asked for.
        negative, positive = probe.score(rows[:, None].expand(-1, n_layers, -1))[:, place].mean(dim=0)
        return float(positive - negative)

    positive = probe.label_names[1]
    return Reading(
        layer,
        f"logit of {positive!r}, layer {layer}",
        f"logit of {positive!r} by the probe {path.name} on the completion's rows of layer {layer}; captured "
        "without steering, mean over the completion",
        score,
    )
