"""Rows to a storage type with scales, and what storage lost: loops over blocks of rows."""

# No `from __future__ import annotations` here: TorchScript reads the annotations.

import torch

from easysteer_data.shards.scripted import scripted

# Sums over the rows of |x|^2, of |x - s|^2 and of the cosines of x and s, and the least of these; float64 [].
Errors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@scripted
def encode_rows(
    rows: torch.Tensor,
    into: torch.Tensor,
    scale: torch.Tensor,
    stored_peak: float,
    min_scale: float,
    max_scale: float,
    n_block: int,
) -> None:
    """Divide each row by its scale, which is chosen, and round it into the storage type."""
    for start in range(0, rows.shape[0], n_block):
        single = rows[start : start + n_block].to(torch.float32)
        peak = single.abs().amax(dim=1)
        chosen = (peak / stored_peak).clamp_(min_scale, max_scale).masked_fill_(peak == 0, 1.0)
        scale[start : start + n_block] = chosen
        single = single / chosen.unsqueeze(1)
        if into.dtype == torch.int8:
            single.round_()
        into[start : start + n_block].copy_(single)


@scripted
def storage_errors(
    captured: torch.Tensor, stored: torch.Tensor, scale: torch.Tensor | None, n_block: int
) -> Errors:
    """Compare rows [n > 0, width] as captured with the same as stored."""
    sum_square = torch.zeros([], dtype=torch.float64)
    sum_error = torch.zeros([], dtype=torch.float64)
    sum_cosine = torch.zeros([], dtype=torch.float64)
    min_cosine = torch.ones([], dtype=torch.float64)
    for start in range(0, captured.shape[0], n_block):
        part = slice(start, start + n_block)
        # Half to double directly is four times slower.
        x = captured[part].to(torch.float32).to(torch.float64)
        single = stored[part].to(torch.float32)
        if scale is not None:
            single = single * scale[part].unsqueeze(1)
        s = single.to(torch.float64)
        square, inner = (x * x).sum(1), (x * s).sum(1)
        length = square.sqrt() * (s * s).sum(1).sqrt()
        error = (s - x).square_().sum(1)
        cosine = inner / length.masked_fill(length == 0, 1.0)  # 0 where one of the two is zero
        cosine = cosine.masked_fill(error == 0, 1.0).clamp_(max=1.0)
        sum_square += square.sum()
        sum_error += error.sum()
        sum_cosine += cosine.sum()
        min_cosine = torch.minimum(min_cosine, cosine.min())
    return sum_square, sum_error, sum_cosine, min_cosine
