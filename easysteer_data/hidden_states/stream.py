"""`capture_stream`: rows of any number of prompts, handed over part by part while the engine runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from easysteer_data.bos import BosPolicy
from easysteer_data.cores import helper_threads, shared_pool, short_turns
from easysteer_data.engine.arrival import row_check, rows_unread, wait_for_rows
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.proof import FinishedPrompt, ProvenRows, Recorded, Rules, prove
from easysteer_data.engine.row_store import RowStore
from easysteer_data.engine.session import CaptureSession
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import Chunk, StreamShape, Sums
from easysteer_data.hidden_states.capture import capture_result, finished_prompt
from easysteer_data.hidden_states.prompts import prepare_prompts
from easysteer_data.hidden_states.result import CaptureResult
from easysteer_data.select import SelectSpec, coerce_select, max_rows
from easysteer_data.types import Gates, Reduce, Stream

_N_COPIERS = helper_threads()


class _Part:
    """The rows of some consecutive prompts on their way.

    Args:
        prompts: their indices.
        select: which of their rows are wanted, None = all.
        store: where their rows are put as they arrive; None where it is not known how many come.
        max_tokens: tokens that are generated at most.
    """

    def __init__(
        self, prompts: range, select: SelectSpec | None, store: RowStore | None, max_tokens: int
    ) -> None:
        self.prompts = prompts
        self._select = select
        self._max_tokens = max_tokens
        self.outputs: dict[int, Any] = {}
        self._store = store
        self._chunks: list[Chunk] = []
        self._sums: list[Sums] = []

    def add(self, chunk: Chunk, rows: np.ndarray) -> None:
        """Take in the rows of a chunk that are this part's: int64 [n], ascending."""
        if self._store is None:
            self._chunks.append(chunk)
        else:
            self._store.add(chunk, rows)

    def add_sums(self, sums: Sums) -> None:
        """Take in sums, those of other parts among them."""
        self._sums.append(sums)

    @property
    def is_finished(self) -> bool:
        """Whether all prompts are done; their last rows may still be on their way."""
        return len(self.outputs) == len(self.prompts)

    def row_check(self) -> Callable[[], bool | None]:
        """What says whether every row of the prompts, which are finished, is there."""
        outputs = (self.outputs[i] for i in self.prompts)
        unread = (rows_unread(self._select, self._max_tokens, len(o.outputs[0].token_ids)) for o in outputs)
        return row_check(self._store, unread)

    def prove(self, rules: Rules) -> tuple[ProvenRows, list[Any]]:
        """The part's rows, checked, and its outputs."""
        outputs = [self.outputs[i] for i in self.prompts]
        chunks = self._chunks if self._store is None else [self._store.finish()]
        return prove(Recorded(chunks, self._sums), self._records(), rules), outputs

    def _records(self) -> list[FinishedPrompt]:
        return [finished_prompt(i, self.outputs[i], self._select) for i in self.prompts]


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
        buffer_bytes: shared memory for rows on their way from each worker, None = 128 MiB, on a GPU 4 GiB.
            Memory of rows that you have let go is kept for the engine's next parts and captures, as far as it
            takes no more than that together with what you hold. On a GPU give room for the rows of some five
            steps, or the engine may wait for this process; the first capture locks the pages, at some 2.5 GB
            a second.
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
    copiers = shared_pool(_N_COPIERS, "easysteer-data-copy")
    with (
        short_turns(),
        CaptureSession(engine, shapes, reduce, buffer_bytes=buffer_bytes, groups=batch_prompts) as session,
    ):

        def open_part(first: int) -> _Part:
            prompts = range(first, min(first + batch_prompts, len(given)))
            counts = [_max_rows(given[i], spec, max_tokens) for i in prompts] if reduce is None else [None]
            known = [count for count in counts if count is not None]
            store = (
                RowStore(first, known, shapes, copiers, session.memory)
                if len(known) == len(prompts)
                else None
            )
            return _Part(prompts, spec, store, max_tokens)

        parts = _Parts(session, batch_prompts, open_part)
        for part in parts.in_order(feed.run(requests)):
            rows, outputs = part.prove(rules)
            yield capture_result(rows, stream, shapes[stream], outputs, engine)


def _max_rows(prompt: Any, select: SelectSpec | None, max_tokens: int) -> int | None:
    """Most rows that a prompt can give, None where its tokens are not known yet."""
    tokens = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    if tokens is None:
        return None
    return max_rows(tokens, select, max_tokens - 1)


class _Parts:
    """Sorts finished prompts and arriving rows into parts.

    Args:
        session: where rows come from.
        batch_prompts: prompts in each part.
        open_part: makes the part that begins with a prompt.
    """

    def __init__(
        self,
        session: CaptureSession,
        batch_prompts: int,
        open_part: Callable[[int], _Part],
    ) -> None:
        self._session = session
        self._batch_prompts = batch_prompts
        self._open_part = open_part
        self._parts: dict[int, _Part] = {}
        self._first = 0

    def in_order(self, steps: Iterator[list[tuple[int, Any]]]) -> Iterator[_Part]:
        """The parts, each when it and those before it are whole."""
        for finished in steps:
            self._add(self._session.look())
            for index, output in finished:
                self._part_of(index).outputs[index] = output
            while self._first in self._parts and self._parts[self._first].is_finished:
                wait_for_rows(self._session, self._parts[self._first].row_check(), self._add)
                yield self._parts.pop(self._first)
                self._first += self._batch_prompts

    def _add(self, recorded: Recorded) -> None:
        for chunk in recorded.chunks:
            for part, rows in self._rows_of_parts(chunk.prompt.numpy()):
                part.add(chunk, rows)
        for sums in recorded.sums:
            for part, _ in self._rows_of_parts(sums.prompt.numpy()):
                part.add_sums(sums)

    def _rows_of_parts(self, prompts: np.ndarray) -> Iterator[tuple[_Part, np.ndarray]]:
        """The parts that rows of these prompts [n] belong to, each with the places of its rows."""
        number = prompts // self._batch_prompts
        order = np.argsort(number, kind="stable")
        begins = np.flatnonzero(np.diff(number[order], prepend=-1))
        for rows in np.split(order, begins[1:]) if len(order) else ():
            first_prompt = int(prompts[rows[0]])
            # The engine may run a step past the end of a finished prompt, whose part has gone.
            if first_prompt >= self._first:
                yield self._part_of(first_prompt), rows

    def _part_of(self, prompt: int) -> _Part:
        start = prompt // self._batch_prompts * self._batch_prompts
        if start not in self._parts:
            self._parts[start] = self._open_part(start)
        return self._parts[start]
