"""The seed's two convenience calls around `capture`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from easysteer_data.errors import SettingsError
from easysteer_data.hidden_states.capture import Select, capture
from easysteer_data.select import select_from_lists


def get_all_hidden_states_generate(
    llm: Any,
    prompts: Sequence[Any],
    max_tokens: int = 1,
    split_by_samples: bool = True,
    token_ids: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    select: Select | None = None,
    **generate_kwargs: Any,
) -> tuple[list[list[torch.Tensor]] | list[torch.Tensor], list[Any]]:
    """Capture hidden states and return them as nested lists, with the outputs.

    Args:
        llm: as for `capture`; so are max_tokens, layers, dtype, select and generate_kwargs.
        prompts: as for `capture`.
        max_tokens: as for `capture`.
        split_by_samples: True gives [sample][layer] tensors [rows, dim], False [layer] tensors of all rows.
        token_ids: keep rows whose input token is one of these, in the prompt or generated.
        positions: keep these prompt positions; negatives count from the prompt's end. Both lists union.
        layers: as for `capture`.
        dtype: as for `capture`.
        select: as for `capture`; not together with the two lists.
        **generate_kwargs: as for `capture`.

    Raises:
        ValueError: an empty list, or a list together with `select`.
    """
    if select is not None and (token_ids is not None or positions is not None):
        raise SettingsError("token_ids and positions can't be combined with select; put them into the select")
    result = capture(
        llm,
        prompts,
        max_tokens=max_tokens,
        layers=layers,
        dtype=dtype,
        select=select if select is not None else select_from_lists(token_ids, positions),
        **generate_kwargs,
    )
    if split_by_samples:
        return result.to_nested(), list(result.outputs)
    return [result.rows(layer_id) for layer_id in result.layer_ids], list(result.outputs)


def get_moe_router_logits_generate(
    llm: Any,
    prompts: Sequence[Any],
    max_tokens: int = 1,
    split_by_samples: bool = False,
    **generate_kwargs: Any,
) -> tuple[dict[int, torch.Tensor] | list[dict[int, torch.Tensor]], list[Any]]:
    """Capture the pre-softmax router logits of every MoE block.

    Args:
        llm: as for `capture`, opened with `streams=("router_logits",)`.
        prompts: as for `capture`.
        max_tokens: as for `capture`.
        split_by_samples: False gives {layer: [rows, n_experts]}, True a list of such dicts, one per sample.
        **generate_kwargs: as for `capture`.
    """
    result = capture(llm, prompts, max_tokens=max_tokens, stream="router_logits", **generate_kwargs)
    if split_by_samples:
        return [result.sample(i) for i in range(len(result))], list(result.outputs)
    return dict(result.layers), list(result.outputs)
