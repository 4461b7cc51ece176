"""The section on the captured run: what it holds, where it comes from, what its gates counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from easysteer_data.plots import Curve, layer_curves
from easysteer_data.report_page.content import PageFigure, Section
from easysteer_data.shards import Run, layer_ranges

Facts = list[tuple[str, str]]

_DESCRIPTIONS = ("model", "tokenizer", "corpus", "tokenisation", "versions", "settings", "provenance")


def run_section(run: Run) -> Section:
    """Build it from a run's records and statistics; reads no row."""
    header, measured = run.manifest.header, run.manifest.measured
    gates = measured.get("gates")
    tables: dict[str, Facts] = {name: list(_facts(getattr(header, name))) for name in _DESCRIPTIONS}
    return Section(
        "run",
        "Captured run and provenance",
        "run.html",
        {
            "facts": _run_facts(run),
            "gates": gates if isinstance(gates, Mapping) else None,
            "tables": {name: facts for name, facts in tables.items() if facts},
        },
        [_norms(run)],
    )


def _run_facts(run: Run) -> Facts:
    header = run.manifest.header
    facts = [
        ("fingerprint", header.fingerprint),
        ("prompts", f"{header.n_prompts:,}"),
        ("rows", f"{run.n_rows:,} a layer{'' if header.rows else ', statistics only'}"),
        ("labels", str(header.label).removeprefix("labels ")),
        ("layer convention", header.layer_convention),
        ("shards", f"{len(header.plan):,}"),
        ("size", f"{run.manifest.n_bytes / 10**9:.3g} GB"),
    ]
    for stream, layer_ids in run.streams.items():
        shape = header.streams[stream]
        what = f"layers {layer_ranges(layer_ids)} of width {shape.width}, {shape.dtype}"
        facts.insert(3, (stream, what))
    n_tokens, wall_s = run.manifest.measured.get("n_tokens"), run.manifest.measured.get("wall_s")
    if isinstance(n_tokens, int) and isinstance(wall_s, int | float):
        facts.append(("captured in", f"{wall_s:,.0f} s, {n_tokens:,} tokens"))
    return facts


def _facts(values: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as lines "a.b" -> text; empty ones are left out."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _facts(value, f"{prefix}.{key}" if prefix else str(key))
    elif values not in (None, "", [], ()):
        text = ", ".join(map(str, values)) if isinstance(values, list | tuple) else str(values)
        yield prefix, text


def _norms(run: Run) -> PageFigure:
    stream = "hidden_states" if "hidden_states" in run.streams else next(iter(run.streams))
    found = [run.statistics(stream, layer_id) for layer_id in run.layers]
    mean, largest = [one.mean_norm for one in found], [one.max_abs for one in found]
    figure = layer_curves(
        run.layers,
        [Curve("mean norm of a row", mean), Curve("largest element", largest)],
        y_label=stream.replace("_", " "),
        log=min((*mean, *largest)) > 0,
    )
    caption = f"Norm of the rows of {stream.replace('_', ' ')}, and their largest element, in each layer."
    description = (
        f"{caption} Mean norm from {mean[0]:.3g} in layer {run.layers[0]} to {mean[-1]:.3g} in layer "
        f"{run.layers[-1]}."
    )
    return PageFigure("run-norms", "Size of the rows", caption, description, figure)
