"""Sorts the engine's chunks into shards, and hands out each shard, proven, when its last prompt is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from easysteer_data.engine.proof import FinishedPrompt, Recorded, Rules, prove
from easysteer_data.engine.wire import Chunk, StreamShape
from easysteer_data.errors import EngineError
from easysteer_data.select import SelectSpec
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, Stream


class ShardCollector:
    """Collects rows until a shard is whole.

    Args:
        prompts: the corpus, tokenised; a chunk's `prompt` is the place in it.
        plan: half-open prompt ranges of the shards.
        select: which rows are wanted, None = all.
        shapes: stream -> its layers, in the chunks' order, and its width.
        dtype: storage dtype.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        plan: Sequence[tuple[int, int]],
        select: SelectSpec | None,
        shapes: Mapping[Stream, StreamShape],
        dtype: str,
    ) -> None:
        self._prompts = prompts
        self._plan = plan
        self._starts = np.array([start for start, _ in plan])
        self._select = select
        self._rules = Rules(shapes, dtype)
        self._chunks: dict[int, list[Chunk]] = {}
        self._outputs: dict[int, dict[int, Any]] = {}
        self._closed: set[int] = set()

    def add_rows(self, chunks: Sequence[Chunk]) -> None:
        """Take chunks in; one that spans shards is divided."""
        for chunk in chunks:
            owner = np.searchsorted(self._starts, chunk.prompt.numpy(), side="right") - 1
            numbers = np.unique(owner)
            for number in numbers:
                if int(number) in self._closed:  # the engine ran a step past the end of a finished prompt
                    continue
                part = chunk if len(numbers) == 1 else _part(chunk, torch.from_numpy(owner == number))
                self._chunks.setdefault(int(number), []).append(part)

    def add_outputs(self, outputs: Sequence[tuple[int, Any]]) -> Iterator[CapturedShard]:
        """Take finished requests in; their rows must have been added. Yields the shards that became whole."""
        for index, output in outputs:
            number = int(np.searchsorted(self._starts, index, side="right")) - 1
            finished = self._outputs.setdefault(number, {})
            finished[index] = output
            start, stop = self._plan[number]
            if len(finished) == stop - start:
                yield self._close(number)

    def _close(self, number: int) -> CapturedShard:
        self._closed.add(number)
        outputs = self._outputs.pop(number)
        start, stop = self._plan[number]
        finished = [self._finish(index, outputs[index]) for index in range(start, stop)]
        rows = prove(Recorded(self._chunks.pop(number, [])), finished, self._rules)
        captured = tuple(
            CapturedPrompt(
                prompt=self._prompts[index],
                n_rows=n_rows,
                generated_text=outputs[index].outputs[0].text,
                generated_token_ids=tuple(outputs[index].outputs[0].token_ids),
            )
            for index, n_rows in zip(range(start, stop), rows.n_rows, strict=True)
        )
        values = {
            stream: dict(zip(shape.layer_ids, rows.values[stream], strict=True))
            for stream, shape in self._rules.shapes.items()
        }
        return CapturedShard(number, captured, rows.index, values)

    def _finish(self, index: int, output: Any) -> FinishedPrompt:
        prompt = self._prompts[index]
        if tuple(output.prompt_token_ids) != prompt.token_ids:
            raise EngineError(
                f"prompt {prompt.id} ({prompt.source}): the engine ran other tokens than were given"
            )
        return FinishedPrompt(
            prompt=index,
            name=f"{prompt.id}, {prompt.source}",
            prompt_token_ids=prompt.token_ids,
            generated_token_ids=output.outputs[0].token_ids,
            select=self._select,
        )


def _part(chunk: Chunk, mask: torch.Tensor) -> Chunk:
    return Chunk(
        prompt=chunk.prompt[mask],
        position=chunk.position[mask],
        token_id=chunk.token_id[mask],
        values={stream: value[:, mask] for stream, value in chunk.values.items()},
        peaks={stream: value[:, mask] for stream, value in chunk.peaks.items()},
    )
