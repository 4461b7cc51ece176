"""How an engine's workers share layers and widths, and how their parts of a step become one.

Tensor-parallel ranks compute the same hidden states and router logits, which the first one hands over, and
each its own attention heads. Pipeline-parallel stages have layers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from easysteer_data.engine.wire import SPLIT_STREAMS, Chunk, StartOrder, StreamShape, Sums, WorkerFacts
from easysteer_data.errors import EngineError, UnsupportedEngineError
from easysteer_data.types import Stream

Layers = Mapping[Stream, Sequence[torch.Tensor]]  # of each stream
Join = Callable[[Sequence[torch.Tensor]], torch.Tensor]


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
        values = self._joined([chunk.values for chunk in chunks], _side_by_side)
        peaks = self._joined([{s: list(p) for s, p in chunk.peaks.items()} for chunk in chunks], _largest)
        return replace(first, values=values, peaks={s: torch.stack(layers) for s, layers in peaks.items()})

    def join_sums(self, parts: Sequence[Sums | None]) -> list[Sums]:
        """The sums of all ranks as one; empty where no rank has any."""
        found = [part for part in parts if part is not None]
        if not found:
            return []
        values: list[Layers] = [
            {} if part is None else {s: list(v) for s, v in part.values.items()} for part in parts
        ]
        joined = self._joined(values, _side_by_side)
        return [replace(found[0], values={s: torch.stack(layers) for s, layers in joined.items()})]

    def _joined(self, parts: Sequence[Layers], join: Join) -> dict[Stream, list[torch.Tensor]]:
        """The layers of all stages, one after the other: each the first rank's, joined for split streams."""
        joined: dict[Stream, list[torch.Tensor]] = {}
        n = self.facts[0].n_tensor_ranks
        for stage in (parts[first : first + n] for first in range(0, len(parts), n)):
            for stream, layers in stage[0].items():
                if stream in SPLIT_STREAMS and n > 1:
                    of_ranks = zip(*(part[stream] for part in stage), strict=True)
                    layers = [join(rows) for rows in of_ranks]
                joined.setdefault(stream, []).extend(layers)
        return joined


def _side_by_side(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(parts), dim=-1)


def _largest(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(parts)).amax(0)
