"""Rows brought to a common scale by what the train split's rows are like. Knows no split and no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

import torch

from easysteer_data.data_options import Normalisation
from easysteer_data.shards import RowStatistics, Run
from easysteer_data.types import Split, Stream

NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)

# Elements of rows that are held in float64 at once while they are measured: 128 MiB.
_BLOCK_ELEMENTS = 2**24

# A feature counts as constant below this spread relative to its mean: rounding of float64 sums is less.
_CONSTANT = 1e-12


@dataclass(frozen=True, slots=True)
class Normaliser:
    """(x - mean) * scale, or x over its own L2 norm.

    Attributes:
        method: `none`; `center`: mean 0; `standardise`: mean 0 and variance 1 (a constant feature stays 0);
            `unit_norm`: every row has L2 norm 1 (a zero row stays zero); `mean_norm`: rows have L2 norm
            sqrt(width) on average, as sparse autoencoders are trained on.
        mean: float64 [L, width], None where nothing is subtracted.
        scale: float64 [L, width] or [L, 1], None where nothing is multiplied.
    """

    method: Normalisation = "none"
    mean: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows [B, L, width], or [B, width] of one layer, in `dtype`; `x` itself may be overwritten.

        Computed in float32 at least: squares overflow float16, and differences lose its last bits.
        """
        if self.method == "none":
            return x.to(dtype)
        x = x.to(torch.promote_types(dtype, torch.float32))
        if self.method == "unit_norm":
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return x.div_(norm.clamp_min_(torch.finfo(x.dtype).tiny)).to(dtype)
        if self.mean is not None:
            x = x.sub_(self.mean.to(x))
        if self.scale is not None:
            x = x.mul_(self.scale.to(x))
        return x.to(dtype)


class MeasuredRun(Protocol):
    """A run that knows what its rows are like, wherever it lies."""

    def statistics(self, stream: Stream, layer_id: int, split: Split) -> RowStatistics: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class RowMoments:
    """What rows are like; float64.

    Attributes:
        mean: [L, width].
        variance: [L, width], of the population.
        mean_norm: [L], mean L2 norm of a row.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    mean_norm: torch.Tensor


def fit_normaliser(
    method: Normalisation, run: Run, stream: Stream, layer_ids: Sequence[int], rows: torch.Tensor
) -> Normaliser:
    """Fit to rows of the train split (int64 [n], n > 0) in L layers of a run.

    All rows of the split are known by the run's statistics; some of them are read once.
    """
    if method in ("none", "unit_norm"):
        return Normaliser(method)
    moments = stored_moments(run, stream, layer_ids, len(rows))
    return normaliser_of(method, moments or measure_rows(run, stream, layer_ids, rows))


def normaliser_of(method: Normalisation, moments: RowMoments) -> Normaliser:
    """The normaliser that brings rows of these moments to the method's scale."""
    if method in ("none", "unit_norm"):
        return Normaliser(method)
    if method == "center":
        return Normaliser(method, moments.mean)
    if method == "mean_norm":
        width = moments.mean.shape[1]
        scale = torch.where(moments.mean_norm > 0, width**0.5 / moments.mean_norm, 1.0)
        return Normaliser(method, None, scale[:, None])
    std = moments.variance.sqrt()
    return Normaliser(method, moments.mean, torch.where(std > _CONSTANT * moments.mean.abs(), 1 / std, 1.0))


def measure_rows(run: Run, stream: Stream, layer_ids: Sequence[int], rows: torch.Tensor) -> RowMoments:
    """Measure rows (int64 [n], n > 0) block by block, in float64."""
    width = run.manifest.header.streams[stream].width
    n_block = max(1, _BLOCK_ELEMENTS // (width * len(layer_ids)))
    # Sums of differences from some row, where sums of squares would lose what is small beside the mean.
    origin = run.gather(stream, layer_ids, rows[:1]).double()[0]
    total, total_square, total_norm = (
        torch.zeros_like(origin),
        torch.zeros_like(origin),
        torch.zeros(len(layer_ids), dtype=torch.float64),
    )
    for block in torch.split(rows, n_block):
        x = run.gather(stream, layer_ids, block).double()
        total_norm += torch.linalg.vector_norm(x, dim=-1).sum(dim=0)
        x -= origin
        total += x.sum(dim=0)
        total_square += x.square_().sum(dim=0)
    shift = total / len(rows)
    variance = (total_square / len(rows) - shift.square()).clamp_min_(0)
    return RowMoments(origin + shift, variance, total_norm / len(rows))


def stored_moments(
    run: MeasuredRun, stream: Stream, layer_ids: Sequence[int], n_rows: int
) -> RowMoments | None:
    """Moments of the train split's rows as captured, None where the split has more than `n_rows`."""
    layers = [run.statistics(stream, layer_id, "train") for layer_id in layer_ids]
    if any(layer.n_rows != n_rows for layer in layers):
        return None
    mean = torch.stack([layer.mean for layer in layers])
    mean_square = torch.stack([layer.mean_square for layer in layers])
    mean_norm = torch.tensor([layer.mean_norm for layer in layers], dtype=torch.float64)
    return RowMoments(mean, (mean_square - mean.square()).clamp_min_(0), mean_norm)
