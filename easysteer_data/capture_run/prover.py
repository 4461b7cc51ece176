"""Proves a collected shard's rows against its prompts' own tokens. Knows no file and no engine's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from easysteer_data.capture_run.collector import CollectedShard, Completion
from easysteer_data.capture_run.plan import CapturePlan
from easysteer_data.engine.proof import FinishedPrompt, Rules, expected_rows, prove
from easysteer_data.engine.wire import StreamShape
from easysteer_data.errors import EngineError
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, Stream


class ShardProver:
    """Turns collected shards into proven ones, also several at once.

    Args:
        plan: the capture.
        shapes: stream -> its layers, in the chunks' order, its width and the rows' dtype.
    """

    def __init__(self, plan: CapturePlan, shapes: Mapping[Stream, StreamShape]) -> None:
        self._plan = plan
        self._rules = Rules(shapes, plan.selection.reduce, plan.settings.capture.gates)

    def accept(self, index: int, output: Any) -> Completion:
        """Check a RequestOutput against its prompt and keep what is needed of it.

        Raises:
            EngineError: the engine ran other tokens than were given, or finished the prompt with an error.
        """
        prompt, made = self._plan.prompts[index], output.outputs[0]
        where = f"prompt {prompt.id} ({prompt.source})"
        if made.finish_reason == "error":
            raise EngineError(f"{where}: the engine finished it with an error; its log says why")
        if tuple(output.prompt_token_ids or ()) != prompt.token_ids:
            raise EngineError(f"{where}: the engine ran other tokens than were given")
        return Completion(made.text, tuple(made.token_ids))

    def foreseen(
        self, number: int, prompts: range, values: Mapping[Stream, Mapping[int, torch.Tensor]]
    ) -> CapturedShard:
        """A shard before its prompts have run, of rows of prompt tokens only: all but the completions.

        Args:
            number: the shard's.
            prompts: its prompts.
            values: stream -> layer id -> memory of its rows.
        """
        found = [self._plan.prompts[index] for index in prompts]
        index, n_rows = expected_rows([self._finished(prompt, Completion("", ())) for prompt in found])
        counted = zip(found, n_rows.tolist(), strict=True)
        return CapturedShard(number, tuple(CapturedPrompt(prompt, n) for prompt, n in counted), index, values)

    def n_tokens(self, shard: CollectedShard) -> int:
        """Tokens that the model read or made for a shard."""
        return sum(
            len(self._plan.prompts[index].token_ids) + len(completion.token_ids)
            for index, completion in shard.completions.items()
        )

    def prove(self, shard: CollectedShard) -> tuple[CapturedShard, dict[str, int]]:
        """Put the shard's rows in order and check each one; takes its chunks out of it.

        Returns:
            The shard, and fault -> rows and layers that had it, empty unless faults are counted.

        Raises:
            ProofError: a row is missing, doubled, mislabelled, all zeros or not finite.
        """
        prompts = [self._plan.prompts[index] for index in sorted(shard.completions)]
        completions = [shard.completions[prompt.index] for prompt in prompts]
        finished = [self._finished(*pair) for pair in zip(prompts, completions, strict=True)]
        rows = prove(shard.recorded(), finished, self._rules)
        shard.store, shard.chunks, shard.sums = None, [], []
        captured = tuple(
            CapturedPrompt(prompt, n_rows, completion.text, completion.token_ids)
            for prompt, n_rows, completion in zip(prompts, rows.n_rows, completions, strict=True)
        )
        values = {
            stream: dict(zip(shape.layer_ids, rows.values[stream], strict=True))
            for stream, shape in self._rules.shapes.items()
        }
        return CapturedShard(shard.number, captured, rows.index, values), dict(rows.gates)

    def _finished(self, prompt: Prompt, completion: Completion) -> FinishedPrompt:
        return FinishedPrompt(
            prompt=prompt.index,
            name=f"{prompt.id}, {prompt.source}",
            prompt_token_ids=prompt.token_ids,
            generated_token_ids=completion.token_ids,
            select=self._plan.selects[prompt.index],
        )
