"""The section on steered text: figures over the scale of the vector, and what the model wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from easysteer_data.plots import DoseLine, dose_response
from easysteer_data.report_page.content import KeyFigure, PageFigure, Section
from easysteer_data.report_page.words import layers_name, number, sentence, slug

Json = Mapping[str, Any]

_MIN_RATIO_FOR_LOG = 20


def steering_section(report: Json) -> Section:
    """Build it from the contents of steer_report.json.

    Raises:
        KeyError, TypeError: the report is none.
    """
    best = report["best"]
    curves: Sequence[Json] = report["curves"]
    shown = next((one for one in curves if best and one["layers"] == best["layers"]), curves[0])
    scores = [score for score in report["scores"] if _has(curves, score["name"])]
    ordered = sorted(scores, key=lambda score: score["name"] != report["target"])
    return Section(
        "steering",
        "Steered generation",
        "steering.html",
        {
            "report": report,
            "scores": ordered,
            "shown": layers_name(shown["layers"]),
            "cells": shown["cells"],
            "usable": shown["usable"],
            "samples": [_sample(sample, shown["layers"]) for sample in report["samples"]],
        },
        [_figure(score, curves, shown, report["target"]) for score in ordered],
        _key_figures(report, shown),
        lead_figure=f"steer-{slug(report['target'])}",
    )


def _has(curves: Sequence[Json], name: str) -> bool:
    return any(name in cell["figures"] for curve in curves for cell in curve["cells"])


def _figure(score: Json, curves: Sequence[Json], shown: Json, target: str) -> PageFigure:
    name = score["name"]
    lines = [
        DoseLine(
            layers_name(curve["layers"]),
            [cell["scale"] for cell in curve["cells"]],
            *([_part(cell, name, part) for cell in curve["cells"]] for part in ("value", "low", "high")),
        )
        for curve in curves
    ]
    positive = [value for line in lines for value in line.values if value is not None and value > 0]
    usable = shown["usable"]
    figure = dose_response(
        lines,
        y_label=score["title"],
        usable=(usable["lowest"], usable["highest"]) if usable["n_scales"] > 1 else None,
        log=name == "perplexity" and bool(positive) and max(positive) > _MIN_RATIO_FOR_LOG * min(positive),
    )
    main = next(line for line in lines if line.label == layers_name(shown["layers"]))
    caption = f"{sentence(score['meaning'])}."
    description = (
        f"{caption} With {main.label}: {number(main.values[0])} at scale {main.scales[0]:g}, "
        f"{number(_part(_unsteered(shown), name, 'value'))} unsteered, "
        f"{number(main.values[-1])} at scale {main.scales[-1]:g}."
    )
    title = sentence(f"{score['title']}{' (target)' if name == target else ''}")
    return PageFigure(f"steer-{slug(name)}", title, caption, description, figure)


def _part(cell: Json, name: str, part: str) -> float | None:
    figure = cell["figures"].get(name)
    return None if figure is None else figure[part]


def _unsteered(curve: Json) -> Json:
    return next(cell for cell in curve["cells"] if cell["scale"] == 0)


def _sample(sample: Json, layers: Sequence[int]) -> dict[str, object]:
    """A prompt and its completions under one curve, ascending by scale."""
    kept = [one for one in sample["completions"] if one["scale"] == 0 or one["layers"] == layers]
    return {"prompt": sample["prompt"], "completions": sorted(kept, key=lambda one: float(one["scale"]))}


def _key_figures(report: Json, shown: Json) -> list[KeyFigure]:
    best, usable = report["best"], shown["usable"]
    if best is None:
        return [KeyFigure("Steering", "none usable", "no scale changes the target and keeps to the limits")]
    title = next(score["title"] for score in report["scores"] if score["name"] == report["target"])
    where = (
        f"{layers_name(best['layers'])}, scale {best['scale']:g}, against unsteered text; usable from "
        f"{usable['lowest']:g} to {usable['highest']:g}"
    )
    return [KeyFigure(f"Steering, change of {title}", f"{best['change']:+.3f}", where)]
