"""An engine whose workers answer our calls, and what can be captured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from easysteer_data.engine.plain import attach
from easysteer_data.engine.ranks import Ranks
from easysteer_data.engine.wire import DTYPES, StreamShape, WorkerFacts
from easysteer_data.errors import EngineError, SettingsError, UnsupportedEngineError
from easysteer_data.types import Stream


class TappedEngine:
    """A vLLM `LLM` whose workers answer our calls; a plain one is tapped where that is possible.

    Attributes:
        llm: the engine.
        ranks: its workers.

    Args:
        llm: the engine.
        stream: the stream to tap in a plain engine.

    Raises:
        RuntimeError: there are workers that share neither layers nor widths.
        UnsupportedEngineError: the engine can't be tapped, or decodes speculatively.
    """

    def __init__(self, llm: Any, stream: Stream = "hidden_states") -> None:
        self.llm = llm
        check_adapters(llm)
        self.ranks = Ranks(self._ask_facts(stream))
        self.ranks.check()

    @property
    def facts(self) -> Sequence[WorkerFacts]:
        """What each worker said, by rank."""
        return self.ranks.facts

    def _ask_facts(self, stream: Stream) -> list[WorkerFacts]:
        try:
            answers = self.llm.collective_rpc("easysteer_facts")
        except Exception as error:  # the methods are missing: vLLM's error differs from executor to executor
            if type(error).__name__ == "EngineDeadError":
                raise EngineError("the engine has died; its log says why") from error
            answers = []
        facts = [WorkerFacts(**answer) for answer in answers]
        if not facts or (facts[0].plain and stream not in facts[0].streams):
            attach(self.llm, stream)
            facts = [WorkerFacts(**answer) for answer in self.llm.collective_rpc("easysteer_facts")]
        return sorted(facts, key=lambda fact: fact.rank)

    @property
    def max_num_seqs(self) -> int:
        """Prompts in one step at most."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens in one step at most."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens)

    def shape(
        self, stream: Stream, layers: Sequence[int] | None, dtype: str | torch.dtype | None = None
    ) -> StreamShape:
        """Check what is asked of a stream against what is tapped.

        Args:
            stream: the stream.
            layers: its layers, None = all that are tapped.
            dtype: dtype of the rows, None = the one in which they are tapped: the model's, float32 for
                router logits.

        Raises:
            SettingsError: the stream is not tapped, a layer is not there, or no row can have the dtype; names
                what is possible.
        """
        streams = self.ranks.streams
        if self.ranks.is_absent(stream):
            missing = {"router_logits": "no MoE router", "attention_heads": "no attention layer"}
            raise SettingsError(f"{self.facts[0].architecture} has {missing[stream]}, so it has no {stream}")
        if stream not in streams:
            raise SettingsError(
                f"stream {stream!r} is not tapped in this engine, only {', '.join(streams)}; "
                f"open it with `streams=({stream!r},)`"
            )
        there = self.ranks.layer_ids(stream)
        asked = there if layers is None else sorted(set(layers))
        missing_ids = [layer_id for layer_id in asked if layer_id not in there]
        if missing_ids or not asked:
            raise SettingsError(
                f"layers {missing_ids or '[]'} are not hooked; this engine has layers {there[0]} to "
                f"{there[-1]} ({len(there)} in all)"
            )
        return StreamShape(
            tuple(asked), self.ranks.width(stream), check_dtype(dtype) or str(streams[stream]["dtype"])
        )

    def layouts(self, stream: Stream) -> dict[int, dict[str, int]]:
        """Per layer {num_heads, head_size} of attention heads, of all ranks; empty for others."""
        return self.ranks.layouts(stream)


def check_adapters(llm: Any) -> None:
    """Refuse an engine that puts a LoRA adapter on requests by itself: their rows would not be the model's.

    Raises:
        UnsupportedEngineError: names the argument to leave out.
    """
    lora = getattr(llm.llm_engine.vllm_config, "lora_config", None)
    if getattr(lora, "default_mm_loras", None):
        raise UnsupportedEngineError(
            "this engine puts LoRA adapters on multimodal prompts by itself; open it without "
            "default_mm_loras, or merge the adapter first"
        )


def check_dtype(dtype: str | torch.dtype | None) -> str | None:
    """Return the dtype's name.

    Raises:
        SettingsError: not one of float32, bfloat16, float16.
    """
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    if name is not None and name not in DTYPES:
        raise SettingsError(f"dtype {name!r} can't hold rows; choose from {', '.join(DTYPES)}")
    return name
