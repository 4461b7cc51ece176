"""What a verification found: figures of every layer, the bounds they are held to, a table of plain text.

Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from easysteer_data.types import Stream
from easysteer_data.verify.bounds import Bounds

# Characters of a line of the table.
_WIDTH = 80
_HEADS = f"{'cosine':>10}  {'relative':>11}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """The worst figures of some rows of a layer.

    Attributes:
        cosine: the smallest.
        relative: the largest difference, in units of the expected row's largest element.
    """

    cosine: float
    relative: float


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer of one stream.

    Attributes:
        stream: the stream.
        layer_id: the decoder block that the run says its rows are of.
        later: rows of positions >= 1; None where none was compared.
        first: rows of position 0, whose activations are massive in many models; None where none was compared.
        matches: the block whose output most rows match, layer_id where all is well; -1 for the embeddings.
        excess: the worst row's distance from Hugging Face's, in units of the bounds: at most 1 passes.
        worst: that row's prompt, position and figures, in words.
    """

    stream: Stream
    layer_id: int
    later: Agreement | None
    first: Agreement | None
    matches: int
    excess: float
    worst: str

    @property
    def passed(self) -> bool:
        """Every row keeps to the bounds, and is no other layer's."""
        return self.excess <= 1 and self.matches == self.layer_id


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A run against Hugging Face on the CPU in float32.

    Attributes:
        run: the run's folder.
        model: the model's name.
        dtypes: stream -> dtype of the model and of the stored rows, in words.
        bounds: stream -> what its rows must keep to.
        layers: every stored layer of every stream.
        n_prompts: prompts that were run again.
        n_rows: their rows of each layer.
    """

    run: str
    model: str
    dtypes: Mapping[Stream, str]
    bounds: Mapping[Stream, Bounds]
    layers: tuple[LayerResult, ...]
    n_prompts: int
    n_rows: int

    @property
    def passed(self) -> bool:
        """Every layer of every stream passed."""
        return all(layer.passed for layer in self.layers)

    @property
    def failure(self) -> str:
        """One line that says what is wrong and where; empty for a run that passed."""
        if self.passed:
            return ""
        shifted = [layer for layer in self.layers if layer.matches != layer.layer_id]
        if shifted:
            last = shifted[-1]
            return (
                f"{self.run}: {len(shifted)} of {len(self.layers)} layers hold another layer's rows: "
                f"{last.stream}: rows of layer {last.layer_id} match Hugging Face's {_name(last.matches)}"
            )
        n_failed = sum(not layer.passed for layer in self.layers)
        worst = max(self.layers, key=lambda layer: layer.excess)
        return (
            f"{self.run}: {n_failed} of {len(self.layers)} layers differ from Hugging Face; worst: "
            f"{worst.stream} of layer {worst.layer_id}, {worst.worst}; bounds: {self.bounds[worst.stream]}"
        )

    def table(self) -> str:
        """Figures of every layer as text of at most 80 columns."""
        lines = [
            f"{self.n_prompts} prompts, {self.n_rows} rows a layer, against Hugging Face in float32 (CPU)",
            _cut(f"model: {self.model}"),
        ]
        for stream, bounds in self.bounds.items():
            lines += ["", f"{stream}: {self.dtypes[stream]}", f"bounds: {bounds}", ""]
            lines.append(f"{'':7}{'positions >= 1':>23}  {'position 0':>23}")
            lines.append(f"{'layer':>5}  {_HEADS}  {_HEADS}  rows match")
            lines += [_line(layer) for layer in self.layers if layer.stream == stream]
        return "\n".join([*lines, "", "passed" if self.passed else "FAILED"])


def _line(layer: LayerResult) -> str:
    figures = f"{_figures(layer.later)}  {_figures(layer.first)}"
    verdict = "" if layer.passed else "  FAILED"
    return f"{layer.layer_id:>5}  {figures}  {_name(layer.matches)}{verdict}"


def _figures(rows: Agreement | None) -> str:
    if rows is None:
        return f"{'-':>10}  {'-':>11}"
    return f"{rows.cosine:>10.7f}  {rows.relative:>11.1e}"


def _name(matches: int) -> str:
    return "embeddings" if matches < 0 else f"layer {matches}"


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
