"""What a verification found: figures of every layer, the bounds they are held to, a table of plain text.

Measures nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from easysteer_data.types import Stream

_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a row must keep to.

    Attributes:
        cosine: the smallest that passes.
        relative: the largest difference that passes, in units of the expected row's largest element.
    """

    cosine: float
    relative: float

    def __str__(self) -> str:
        return f"cosine >= {self.cosine:g}, relative difference <= {self.relative:g}"


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
        worst: prompt, position and figures of the row furthest from its bounds, in words.
        passed: every row keeps to the bounds, and `matches` is `layer_id`.
    """

    stream: Stream
    layer_id: int
    later: Agreement | None
    first: Agreement | None
    matches: int
    worst: str
    passed: bool


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A run against Hugging Face in float32 on the CPU.

    Attributes:
        run: the run's folder.
        model: the model's name.
        dtypes: stream -> the model's dtype and the storage dtype, in words.
        bounds: stream -> what its rows must keep to.
        layers: every stream and layer of the run.
        worst: place in `layers` of the one with the row furthest from its bounds.
        n_prompts: prompts that were run again.
        n_rows: their rows of each layer.
    """

    run: str
    model: str
    dtypes: dict[Stream, str]
    bounds: dict[Stream, Bounds]
    layers: tuple[LayerResult, ...]
    worst: int
    n_prompts: int
    n_rows: int

    @property
    def passed(self) -> bool:
        """Every layer of every stream passed."""
        return all(layer.passed for layer in self.layers)

    @property
    def failure(self) -> str:
        """One line that says what is wrong, "" where nothing is."""
        if self.passed:
            return ""
        failed = [layer for layer in self.layers if not layer.passed]
        shifted = [layer for layer in failed if layer.matches != layer.layer_id]
        if shifted:
            first = shifted[0]
            return (
                f"{self.run}: {len(shifted)} of {len(self.layers)} layers hold another layer's rows: rows of "
                f"layer {first.layer_id} of {first.stream} match Hugging Face's {_name(first.matches)}"
            )
        worst = self.layers[self.worst]
        return (
            f"{self.run}: {len(failed)} of {len(self.layers)} layers differ from Hugging Face; the worst row is "
            f"{worst.stream} of layer {worst.layer_id}, {worst.worst}; bounds: {self.bounds[worst.stream]}"
        )

    def table(self) -> str:
        """Figures of every layer as text of at most 80 columns."""
        lines = [f"{self.n_prompts} prompts, {self.n_rows} rows a layer, against Hugging Face on the CPU in float32"]
        lines.append(_cut(f"model: {self.model}"))
        for stream, bounds in self.bounds.items():
            lines += ["", f"{stream}: {self.dtypes[stream]}", f"bounds: {bounds}", ""]
            lines.append(f"{'':7}{'positions >= 1':>23}  {'position 0':>23}")
            lines.append(f"{'layer':>5}  {_HEADS}  {_HEADS}  rows match")
            lines += [_line(layer) for layer in self.layers if layer.stream == stream]
        lines += ["", "passed" if self.passed else "FAILED"]
        return "\n".join(lines)


_HEADS = f"{'cosine':>10}  {'relative':>11}"


def _line(layer: LayerResult) -> str:
    verdict = "" if layer.passed else "  FAILED"
    figures = f"{_figures(layer.later)}  {_figures(layer.first)}"
    return f"{layer.layer_id:>5}  {figures}  {_name(layer.matches)}{verdict}"


def _figures(rows: Agreement | None) -> str:
    if rows is None:
        return f"{'-':>10}  {'-':>11}"
    return f"{rows.cosine:>10.7f}  {rows.relative:>11.1e}"


def _name(matches: int) -> str:
    return "embeddings" if matches < 0 else f"layer {matches}"


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
