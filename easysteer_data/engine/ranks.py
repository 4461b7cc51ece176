"""How an engine's workers share layers and widths, and how their parts of a step become one.

Tensor-parallel ranks compute the same hidden states and router logits, which the first one hands over, and
each its own attention heads. Pipeline-parallel stages have layers of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from easysteer_data.engine.wire import SPLIT_STREAMS, Chunk, StartOrder, StreamShape, Sums, WorkerFacts
from easysteer_data.errors import EngineError, UnsupportedEngineError
from easysteer_data.types import Stream

T = TypeVar("T")


def part_of_rank(
    order: StartOrder, tapped: Mapping[Stream, tuple[Sequence[int], int]], tensor_rank: int
) -> dict[Stream, StreamShape]:
    """What a rank hands over of a capture; both ends compute it, so that no description travels.

    Args:
        order: the capture.
        tapped: stream -> (layer ids, width) of the rank's taps.
        tensor_rank: its rank among those that share its layers.
    """
    part: dict[Stream, StreamShape] = {}
    for stream, layer_ids in order.layers.items():
        if stream not in tapped or (tensor_rank and stream not in SPLIT_STREAMS):
            continue
        there, width = tapped[stream]
        own = tuple(layer_id for layer_id in layer_ids if layer_id in there)
        if own:
            part[stream] = StreamShape(own, width, order.dtypes[stream])
    return part


@dataclass(frozen=True, slots=True)
class Ranks:
    """The workers of an engine.

    Attributes:
        facts: what each said, by rank: the tensor-parallel ranks of the first stage, of the second and so on.
    """

    facts: Sequence[WorkerFacts]

    def check(self) -> None:
        """Refuse what can't be captured right: other kinds of workers, drafts that are thrown away.

        Raises:
            RuntimeError: there are more workers than tensor-parallel ranks and pipeline stages.
            UnsupportedEngineError: the engine decodes speculatively.
        """
        first = self.facts[0]
        if len(self.facts) != first.n_tensor_ranks * first.n_pipeline_ranks:
            raise RuntimeError(f"capture expects a single worker, got {len(self.facts)} RPC results")
        if first.speculative:
            raise UnsupportedEngineError(
                "this engine decodes speculatively: rejected draft tokens have rows of a text that is not "
                "the prompt's; open it without speculative_config"
            )

    @property
    def streams(self) -> dict[Stream, Mapping[str, Any]]:
        """Stream -> what the first rank that taps it says: every rank that does has the width and dtype."""
        found: dict[Stream, Mapping[str, Any]] = {}
        for fact in self.facts:
            for stream, tapped in fact.streams.items():
                found.setdefault(stream, tapped)
        return found

    def is_absent(self, stream: Stream) -> bool:
        """Whether the model has no such stream, in any of its layers."""
        return all(stream in fact.absent for fact in self.facts)

    def layer_ids(self, stream: Stream) -> list[int]:
        """The layers that are tapped, ascending."""
        there = {int(i) for f in self.facts if stream in f.streams for i in f.streams[stream]["layer_ids"]}
        return sorted(there)

    def width(self, stream: Stream) -> int:
        """Values per row of a stream that is tapped, of all ranks."""
        n_parts = self.facts[0].n_tensor_ranks if stream in SPLIT_STREAMS else 1
        return n_parts * int(self.streams[stream]["width"])

    def layouts(self, stream: Stream) -> dict[int, dict[str, int]]:
        """Per layer {num_heads, head_size} of attention heads, of all ranks; empty for others."""
        return {
            int(layer_id): {
                "num_heads": layout["num_heads"] * fact.n_tensor_ranks,
                "head_size": layout["head_size"],
            }
            for fact in self.facts
            if stream in fact.streams
            for layer_id, layout in fact.streams[stream]["layouts"].items()
        }

    def parts(self, order: StartOrder) -> list[dict[Stream, StreamShape]]:
        """What each rank hands over of a capture."""
        return [
            part_of_rank(
                order,
                {stream: (t["layer_ids"], int(t["width"])) for stream, t in fact.streams.items()},
                fact.tensor_rank,
            )
            for fact in self.facts
        ]

    def join(self, chunks: Sequence[Chunk]) -> Chunk:
        """One block's rows from the chunks of all ranks.

        Raises:
            EngineError: the ranks recorded different rows.
        """
        first = chunks[0]
        if len(chunks) == 1:
            return first
        for rank, chunk in enumerate(chunks):
            if not torch.equal(first.position, chunk.position):
                raise EngineError(f"workers 0 and {rank} recorded different rows in one step")
        peaks = [self._one_width([c.peaks for c in stage], amax=True) for stage in self._stages(chunks)]
        return replace(
            first, values=self._joined([chunk.values for chunk in chunks]), peaks=_one_depth(peaks)
        )

    def join_sums(self, parts: Sequence[Sums | None]) -> list[Sums]:
        """The sums of all ranks as one; empty where no rank has any."""
        found = [part for part in parts if part is not None]
        values = [{} if part is None else part.values for part in parts]
        return [replace(found[0], values=self._joined(values))] if found else []

    def _joined(self, parts: Sequence[Mapping[Stream, torch.Tensor]]) -> dict[Stream, torch.Tensor]:
        return _one_depth([self._one_width(stage) for stage in self._stages(parts)])

    def _stages(self, parts: Sequence[T]) -> list[Sequence[T]]:
        n = self.facts[0].n_tensor_ranks
        return [parts[first : first + n] for first in range(0, len(parts), n)]

    def _one_width(
        self, parts: Sequence[Mapping[Stream, torch.Tensor]], *, amax: bool = False
    ) -> dict[Stream, torch.Tensor]:
        """The first rank's values, but all ranks' side by side, or the largest of them, for split streams."""
        if len(parts) == 1:
            return dict(parts[0])
        joined = dict(parts[0])
        for stream in SPLIT_STREAMS & joined.keys():
            values = [part[stream] for part in parts]
            joined[stream] = torch.stack(values).amax(0) if amax else torch.cat(values, dim=-1)
        return joined


def _one_depth(stages: Sequence[Mapping[Stream, torch.Tensor]]) -> dict[Stream, torch.Tensor]:
    """The layers of all stages, one after the other."""
    streams = dict.fromkeys(stream for stage in stages for stream in stage)
    found = {stream: [stage[stream] for stage in stages if stream in stage] for stream in streams}
    return {s: values[0] if len(values) == 1 else torch.cat(values) for s, values in found.items()}
