"""What a run holds, in a few lines of text or as an HTML table. Reads records and prompts, no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from easysteer_data.errors import BadShardError
from easysteer_data.shards import Run, layer_ranges
from easysteer_data.types import SPLITS

_MAX_CLASSES = 12
_GB = 10**9


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in words.

    Attributes:
        path: the run folder.
        facts: what is told -> what it is, in order.
    """

    path: str
    facts: dict[str, str]

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        """Take it from a run's records and prompt table."""
        header = run.manifest.header
        n_bytes = run.manifest.n_bytes + run.manifest.statistics.n_bytes
        kept = "stored" if header.rows else "statistics only"
        facts = {
            "model": str(header.model.get("name", "unnamed model")),
            "data set": str(header.corpus.get("name", "unnamed corpus")),
            "prompts": f"{header.n_prompts:,}",
            "rows": f"{run.n_rows:,} a layer, {kept}",
        }
        for stream, layer_ids in run.streams.items():
            shape = header.streams[stream]
            n_layers = f"{len(layer_ids)} layer{'' if len(layer_ids) == 1 else 's'}"
            facts[stream] = f"{n_layers} ({layer_ranges(layer_ids)}) of width {shape.width}, {shape.dtype}"
        facts |= _prompt_facts(run)
        n_shards = f"{len(header.plan)} shard{'' if len(header.plan) == 1 else 's'}"
        facts["size"] = f"{n_bytes / _GB:.3g} GB in {n_shards}"
        return cls(str(run.path), facts)

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        return "\n".join(
            [f"Run({self.path!r})", *(f"  {name:<{width}}  {what}" for name, what in self.facts.items())]
        )

    def html(self) -> str:
        """The same as an HTML table; the run's own texts are escaped."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(what)}</td></tr>'
            for name, what in self.facts.items()
        )
        caption = f'<caption style="text-align:left">Run <code>{escape(self.path)}</code></caption>'
        return f"<table>{caption}<tbody>{rows}</tbody></table>"


def _prompt_facts(run: Run) -> dict[str, str]:
    label = run.manifest.header.label
    try:
        table = run.prompts(["split", "label"])
    except BadShardError as error:  # a summary is what one looks at to see what is wrong
        return {"splits": f"unknown: {error}", "labels": str(label)}
    splits = Counter(table["split"].to_pylist())
    facts = {"splits": _numbered(splits, SPLITS)}
    if label.kind == "classes":
        labels = Counter(name or "(none)" for name in table["label"].to_pylist())
        facts["labels"] = _numbered(labels, (*label.names, "(none)"))
    else:
        facts["labels"] = str(label)
    return facts


def _numbered(counts: Counter[str], order: Iterable[str]) -> str:
    shown = [f"{name} {counts[name]:,}" for name in order if counts[name]]
    more = f", {len(shown) - _MAX_CLASSES} more" if len(shown) > _MAX_CLASSES else ""
    return ", ".join(shown[:_MAX_CLASSES]) + more
