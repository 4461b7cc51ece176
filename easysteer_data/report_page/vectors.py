"""The section on steering vectors: how well each estimator's directions tell classes and confound apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from easysteer_data.plots import Curve, Flags, cosine_map, layer_curves
from easysteer_data.report_page.content import KeyFigure, PageFigure, Section
from easysteer_data.report_page.words import counts, number, slug

Json = Mapping[str, Any]


def vector_section(report: Json) -> Section:
    """Build it from the contents of vector_report.json.

    Raises:
        KeyError, TypeError: the report is none.
    """
    estimators: Sequence[Json] = report["estimators"]
    best = next(one for one in estimators if one["name"] == report["best_estimator"])
    figures = [_separability(one, one is best) for one in estimators]
    if len(estimators) > 1:
        figures.insert(0, _comparison(estimators))
    figures += [_norms(estimators), _layer_cosines(best)]
    if len(estimators) > 1 and best["best_layer"] is not None:
        figures.append(_estimator_cosines(report, best["best_layer"]))
    return Section(
        "vectors",
        "Steering vectors",
        "vectors.html",
        {
            "negative": report["negative"],
            "positive": report["positive"],
            "n_rows": counts(report["n_rows"]),
            "best": best["name"],
            "estimators": [_row(one, best["best_layer"]) for one in estimators],
            "best_layer": best["best_layer"],
            "by_confound": _by_confound(best),
            "confound": next((one["confound"] for one in estimators if one["confound"]), None),
            "layers": [_layer_row(best, figures_) for figures_ in best["layers"]],
        },
        figures,
        _key_figures(best, estimators),
        lead_figure=figures[0].name,
    )


def _by_confound(best: Json) -> list[float] | None:
    """Shares of test pairs that the confound alone gets right, by which of its values lies higher."""
    chosen = _best_layer(best)
    found = None if chosen is None else _split(chosen, "test")["confound_pair_accuracy"]
    return None if found is None else sorted((found, 1 - found))


def _row(estimator: Json, shared_layer: int | None) -> dict[str, object]:
    """One estimator at its best layer, and at that of the best estimator."""
    chosen = _best_layer(estimator)
    shared = next((one for one in estimator["layers"] if one["layer"] == shared_layer), None)
    return {
        "name": estimator["name"],
        "layer": estimator["best_layer"],
        "validation": _split(chosen, "validation"),
        "test": _split(chosen, "test"),
        "shared": _split(shared, "test"),
        "median_pairs": estimator["median_test_pair_accuracy"],
        "confounded_by": estimator["confounded_by"],
        "n_confounded": len(estimator["confounded_layers"]),
        "n_layers": len(estimator["layers"]),
    }


def _layer_row(estimator: Json, figures: Json) -> dict[str, object]:
    return {
        "layer": figures["layer"],
        "norm": figures["norm"],
        "relative_norm": figures["relative_norm"],
        "validation": _split(figures, "validation"),
        "test": _split(figures, "test"),
        "is_best": figures["layer"] == estimator["best_layer"],
        "is_confounded": figures["layer"] in estimator["confounded_layers"],
    }


def _split(figures: Json | None, split: str) -> Json:
    found = None if figures is None else figures[split]
    names = ("auroc", "pair_accuracy", "confound_auroc", "confound_pair_accuracy")
    return {name: None if found is None else found[name] for name in names}


def _best_layer(estimator: Json) -> Json | None:
    return next((one for one in estimator["layers"] if one["layer"] == estimator["best_layer"]), None)


def _key_figures(best: Json, estimators: Sequence[Json]) -> list[KeyFigure]:
    chosen = _best_layer(best)
    if chosen is None:
        return [KeyFigure("Best vector", best["name"], "no validation split to choose a layer on")]
    test = _split(chosen, "test")
    where = f"{best['name']}, layer {chosen['layer']}"
    if test["pair_accuracy"] is None:
        found = [KeyFigure("Vector, test AUROC", number(test["auroc"]), where)]
    else:
        note = f"{where}; AUROC {number(test['auroc'])}"
        found = [KeyFigure("Vector, accuracy of test pairs", number(test["pair_accuracy"]), note)]
    if confounded := [one["name"] for one in estimators if one["confounded_by"]]:
        note = "at the best layer, or at most layers, more of it than of the classes"
        found.append(KeyFigure(f"Confounded by {best['confound']}", ", ".join(confounded), note, warns=True))
    return found


def _layer_ids(estimator: Json) -> list[int]:
    return [figures["layer"] for figures in estimator["layers"]]


def _values(estimator: Json, split: str, name: str) -> list[float | None]:
    return [_split(figures, split)[name] for figures in estimator["layers"]]


def _separability(estimator: Json, is_best: bool) -> PageFigure:
    """AUROC of the classes, and of the confound, layer by layer."""
    name, confound, flags = estimator["name"], estimator["confound"], None
    curves = [
        Curve("classes, validation", _values(estimator, "validation", "auroc"), "validation"),
        Curve("classes, test", _values(estimator, "test", "auroc"), "test"),
    ]
    caption = f"AUROC of held-out rows projected on the directions of {name}."
    if confound:
        values = _values(estimator, "validation", "confound_auroc")
        curves.append(Curve(f"{confound}, validation", values, "confound"))
        flags = Flags(estimator["confounded_layers"], f"{confound} beats the classes")
        caption += (
            f" Where the dotted line is above, the direction is more of {confound} than of the classes."
        )
    figure = layer_curves(
        _layer_ids(estimator),
        curves,
        y_label="AUROC",
        best_layer=estimator["best_layer"],
        chance=0.5,
        flags=flags,
    )
    test = _split(_best_layer(estimator), "test")
    description = f"{caption} Best layer {estimator['best_layer']}: test AUROC {number(test['auroc'])}."
    title = f"Separability by {name}{' (best)' if is_best else ''}"
    return PageFigure(f"vector-{slug(name)}", title, caption, description, figure)


def _comparison(estimators: Sequence[Json]) -> PageFigure:
    paired = all(value is not None for value in _values(estimators[0], "test", "pair_accuracy"))
    metric = "pair_accuracy" if paired else "auroc"
    what = "accuracy of pairs" if paired else "AUROC"
    figure = layer_curves(
        _layer_ids(estimators[0]),
        [Curve(one["name"], _values(one, "test", metric)) for one in estimators],
        y_label=f"{what}, test split",
        chance=0.5,
    )
    caption = (
        "Share of held-out pairs whose positive side lies above the negative one."
        if paired
        else "AUROC of the test split's rows, projected on each estimator's directions."
    )
    names = ", ".join(one["name"] for one in estimators)
    return PageFigure(
        "vector-comparison", "Estimators compared", caption, f"{caption} Lines: {names}.", figure
    )


def _norms(estimators: Sequence[Json]) -> PageFigure:
    curves = [
        Curve(one["name"], [figures["relative_norm"] for figures in one["layers"]]) for one in estimators
    ]
    figure = layer_curves(_layer_ids(estimators[0]), curves, y_label="step / norm of rows", log=True)
    caption = "How long one step of the vector is, relative to the rows that it is added to."
    shares = [value for curve in curves for value in curve.values if value is not None]
    description = f"{caption} From {min(shares):.3g} to {max(shares):.3g}."
    return PageFigure("vector-norms", "Length of a step", caption, description, figure)


def _layer_cosines(estimator: Json) -> PageFigure:
    names = [str(layer) for layer in _layer_ids(estimator)]
    figure = cosine_map(names, estimator["layer_cosines"], "layer")
    caption = f"Cosine between the directions of every two layers of {estimator['name']}."
    neighbours = [row[place + 1] for place, row in enumerate(estimator["layer_cosines"][:-1])]
    mean = f" Neighbouring layers: {sum(neighbours) / len(neighbours):.2f} on average." if neighbours else ""
    return PageFigure("vector-layer-cosines", "Layers compared", caption, caption + mean, figure)


def _estimator_cosines(report: Json, layer: int) -> PageFigure:
    names = [one["name"] for one in report["estimators"]]
    figure = cosine_map(names, report["estimator_cosines"][str(layer)])
    caption = f"Cosine between the estimators' directions in layer {layer}."
    return PageFigure("vector-estimator-cosines", "Estimators' directions", caption, caption, figure)
