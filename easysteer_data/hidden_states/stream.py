"""`capture_stream`: rows of any number of prompts, handed over part by part while the engine runs on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from easysteer_data.bos import BosPolicy
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.host_memory import HostMemory
from easysteer_data.engine.proof import ProvenRows, Recorded, Rules, prove
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.session import CaptureSession, TappedEngine
from easysteer_data.engine.wire import Chunk, StreamShape, Sums
from easysteer_data.hidden_states.capture import capture_result, finished_prompt
from easysteer_data.hidden_states.prompts import prepare_prompts
from easysteer_data.hidden_states.result import CaptureResult
from easysteer_data.select import SelectSpec, coerce_select
from easysteer_data.types import Gates, Reduce, Stream

_N_COPIERS = max(1, min(8, (os.cpu_count() or 1) // 2))


class _Part:
    """The rows of some consecutive prompts on their way.

    Args:
        prompts: their indices.
        store: where their rows are put as they arrive; None where it is not known how many come.
    """

    def __init__(self, prompts: range, store: RowStore | None) -> None:
        self.prompts = prompts
        self.outputs: dict[int, Any] = {}
        self._store = store
        self._chunks: list[Chunk] = []
        self._sums: list[Sums] = []

    def add(self, recorded: Recorded) -> None:
        """Take rows in, those of other parts among them."""
        self._sums += recorded.sums
        if self._store is None:
            self._chunks += recorded.chunks
            return
        for chunk in recorded.chunks:
            self._store.add(chunk)

    @property
    def is_whole(self) -> bool:
        """Whether all prompts are done."""
        return len(self.outputs) == len(self.prompts)

    def prove(self, rules: Rules, select: SelectSpec | None) -> tuple[ProvenRows, list[Any]]:
        """The part's rows, checked, and its outputs."""
        outputs = [self.outputs[i] for i in self.prompts]
        records = [finished_prompt(i, self.outputs[i], select) for i in self.prompts]
        chunks = self._chunks if self._store is None else [self._store.finish()]
        return prove(Recorded(chunks, self._sums), records, rules), outputs


def capture_stream(
    llm: Any,
    prompts: Sequence[Any],
    max_tokens: int = 1,
    layers: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    select: SelectSpec | Mapping[str, Any] | None = None,
    stream: Stream = "hidden_states",
    *,
    batch_prompts: int = 64,
    buffer_bytes: int | None = None,
    reduce: Reduce | None = None,
    gates: Gates = "raise",
    bos: BosPolicy = "refuse",
    **generate_kwargs: Any,
) -> Iterator[CaptureResult]:
    """Run prompts and yield their proven rows in order, `batch_prompts` prompts at a time.

    The engine is not drained between the parts and runs on while you use one, as far as the buffer and a few
    proven parts allow; memory does not grow with the number of prompts. Leaving the loop early stops the
    engine's requests.

    Args:
        llm: as for `capture`, as is all that is not named here.
        prompts: the prompts.
        max_tokens: tokens to generate; 1 = the prompt's forward pass only.
        layers: true layer ids, None = all that are hooked.
        dtype: storage dtype of the rows, None = the model's.
        select: which rows, for all prompts; None = all.
        stream: "hidden_states", "router_logits" or "attention_heads".
        batch_prompts: prompts in each part.
        buffer_bytes: shared memory for rows on their way from each worker, None = 64 MiB, on a GPU 2 GiB.
        reduce: "last" or "mean" of each prompt's selected rows.
        gates: "raise" or "count".
        bos: "refuse", "repair" or "keep".
        **generate_kwargs: passed to SamplingParams.

    Yields:
        A CaptureResult of each part.

    Raises:
        As `capture`.
    """
    given = prepare_prompts(llm, prompts, bos)
    spec = coerce_select(select)
    engine = TappedEngine(llm, stream)
    shapes: dict[Stream, StreamShape] = {stream: engine.shape(stream, layers, dtype)}
    rules = Rules(shapes, reduce, gates)
    feed = Feed(llm, Sampling(max_tokens, generate_kwargs), window=2 * engine.max_num_seqs)
    requests = (Request(i, prompt, spec) for i, prompt in enumerate(given))
    with (
        ThreadPoolExecutor(_N_COPIERS, "easysteer-data-copy") as copiers,
        CaptureSession(
            engine, shapes, reduce, buffer_bytes=buffer_bytes, block_prompts=batch_prompts
        ) as session,
    ):
        memory = HostMemory()

        def open_part(first: int) -> _Part:
            prompts = range(first, min(first + batch_prompts, len(given)))
            counts = [_max_rows(given[i], spec, max_tokens) for i in prompts] if reduce is None else [None]
            known = [count for count in counts if count is not None]
            store = RowStore(first, known, shapes, copiers, memory) if len(known) == len(prompts) else None
            return _Part(prompts, store)

        for part in _in_order(feed.run(requests), session, len(given), batch_prompts, open_part):
            rows, outputs = part.prove(rules, spec)
            yield capture_result(rows, stream, shapes[stream], outputs, engine)


def _max_rows(prompt: Any, select: SelectSpec | None, max_tokens: int) -> int | None:
    """Most rows that a prompt can give, None where its tokens are not known yet."""
    tokens = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    if tokens is None:
        return None
    return len(tokens) + max_tokens - 1 if select is None else select.max_rows(tokens, max_tokens - 1)


def _in_order(
    steps: Iterator[list[tuple[int, Any]]],
    session: CaptureSession,
    n_prompts: int,
    batch_prompts: int,
    open_part: Callable[[int], _Part],
) -> Iterator[_Part]:
    """The parts, each when it and those before it are whole."""
    parts: dict[int, _Part] = {}
    first = 0

    def part_of(prompt: int) -> _Part:
        start = prompt // batch_prompts * batch_prompts
        if start not in parts:
            parts[start] = open_part(start)
        return parts[start]

    for number, finished in enumerate(steps):
        fetches = finished or number % session.steps_per_fetch == 0
        recorded = session.fetch() if fetches else session.look()
        owners = {int(p) // batch_prompts * batch_prompts for p in recorded.prompts()}
        for start in sorted(owners):
            if start >= first:  # the engine may run a step past the end of a finished prompt
                part_of(start).add(recorded)
        del recorded  # its rows keep room in the buffer
        for index, output in finished:
            part_of(index).outputs[index] = output
        while first < n_prompts and first in parts and parts[first].is_whole:
            yield parts.pop(first)
            first += batch_prompts
