"""The residual stream as Hugging Face computes it on the CPU in float32, one prompt at a time.

Knows a model folder and token ids, no run and no engine. The one module here that may import transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from easysteer_data.errors import RunError


class Reference:
    """A model folder's decoder, with the weights that the engine had and arithmetic in float32.

    Args:
        folder: the model's folder.
        dtype: dtype of the engine's model, e.g. "bfloat16"; the weights are rounded to it first.

    Raises:
        RunError: the decoder blocks can't be found in this architecture.
    """

    def __init__(self, folder: str, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).float().eval()
        self._decoder = model.get_decoder()
        self._blocks = find_blocks(self._decoder, int(model.config.get_text_config().num_hidden_layers))

    @torch.inference_mode()
    def block_states(self, token_ids: Sequence[int], positions: torch.Tensor) -> list[torch.Tensor]:
        """Run one sequence and keep what goes into the first block and comes out of each block.

        Args:
            token_ids: prompt and completion; nothing is padded.
            positions: int64 [n], the positions that are kept.

        Returns:
            n_layers + 1 float32 tensors [n, width]: the embeddings, then each block's output, the last one's
            before the final norm too, where Hugging Face's own `hidden_states` is normed.
        """
        states: list[torch.Tensor] = []

        def keep(state: torch.Tensor) -> None:
            # A copy: some blocks add to their input in place.
            states.append(state[0, positions].clone())

        with ExitStack() as hooks:
            hooks.callback(self._blocks[0].register_forward_pre_hook(_input(keep), with_kwargs=True).remove)
            for block in self._blocks:
                hooks.callback(block.register_forward_hook(_output(keep)).remove)
            self._decoder(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
        return states


def _input(keep: Callable[[torch.Tensor], None]) -> Callable[..., None]:
    def hook(_block: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        keep(arguments[0] if arguments else named["hidden_states"])

    return hook


def _output(keep: Callable[[torch.Tensor], None]) -> Callable[..., None]:
    def hook(_block: Any, _arguments: Any, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    return hook


def find_blocks(decoder: torch.nn.Module, n_layers: int) -> torch.nn.ModuleList:
    """Return the outermost list of `n_layers` modules: a block's own lists, as of experts, lie inside it.

    Raises:
        RunError: there is none.
    """
    for module in decoder.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n_layers:
            return module
    raise RunError(f"verify can't find the {n_layers} decoder blocks of {type(decoder).__name__}")
