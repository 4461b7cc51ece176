"""The section on the probe: figures of each layer beside controls, and what the best layer's probe does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from easysteer_data.report_page.content import KeyFigure, Section
from easysteer_data.report_page.probe_figures import (
    TITLES,
    best_layer,
    figures_of_best,
    metric_curves,
    position_curves,
)
from easysteer_data.report_page.words import counts, number, percent

Json = Mapping[str, Any]


def probe_section(report: Json, text_of: Callable[[int], str | None]) -> Section:
    """Build it from the contents of report.json.

    Args:
        report: the contents.
        text_of: a prompt's text by its index, None where the run is not there to tell.

    Raises:
        KeyError, TypeError: the report is none.
    """
    metric: str = report["selected_by"]
    best = best_layer(report)
    names = [name for name in TITLES if name in best["test"]]
    figures = [metric_curves(report, metric)]
    if "accuracy" in names:
        figures.append(metric_curves(report, "accuracy"))
    figures += figures_of_best(report)
    if report["positions"]:
        figures.append(position_curves(report, metric))
    return Section(
        "probe",
        "Probe",
        "probe.html",
        {
            "report": report,
            "counts": {split: counts(values) for split, values in report["counts"].items()},
            "names": names,
            "titles": TITLES,
            "best": best,
            "rows": _rows(report, best),
            "metric": metric,
            "ends": {
                end: [_prompt(one, text_of) for one in report["best"][end]] for end in ("top", "bottom")
            },
        },
        figures,
        _key_figures(report, best, metric),
        lead_figure=f"probe-{metric}",
    )


def _rows(report: Json, best: Json) -> list[tuple[str, Json]]:
    """What the table of the best layer compares, all on the test split."""
    rows = [(f"probe, layer {best['layer']}", best["test"])]
    if best["control"]:
        rows.append(("same, trained on shuffled labels", best["control"]))
    return rows + [(name.replace("_", " "), figures) for name, figures in report["baselines"].items()]


def _prompt(scored: Json, text_of: Callable[[int], str | None]) -> dict[str, object]:
    return {**scored, "text": text_of(scored["prompt"]) or scored["id"]}


def _key_figures(report: Json, best: Json, metric: str) -> list[KeyFigure]:
    test = best["test"][metric]
    note = f"layer {best['layer']} of {len(report['layers'])}"
    if test["low"] is not None and test["high"] is not None:
        share = percent(report["settings"]["interval"])
        note += f"; {share} interval {number(test['low'])} to {number(test['high'])}"
    found = [KeyFigure(f"Probe, test {TITLES[metric]}", number(test["value"]), note)]
    if best["selectivity"] is not None:
        what = "accuracy" if "accuracy" in best["test"] else "R²"
        found.append(
            KeyFigure("Selectivity", f"{best['selectivity']:+.3f}", f"{what} minus that on shuffled labels")
        )
    words = report["baselines"].get("bag_of_tokens", {}).get(metric)
    if words is not None and words["value"] is not None:
        warns = test["value"] is not None and test["value"] <= words["value"]
        note = "the words alone do as well" if warns else "what the words alone give"
        found.append(KeyFigure(f"Bag of tokens, {TITLES[metric]}", number(words["value"]), note, warns))
    return found
