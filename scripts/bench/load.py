"""What the engines of a bench run: prompts, plain generation of them, and captures whose rows are counted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

SAMPLING = {"ignore_eos": True, "detokenize": False}
LAST, NEW, FIRST = {"prompt_positions": [-1]}, {"generation": "all"}, {"prompt_positions": [0]}


@dataclass(frozen=True)
class Load:
    """What is run.

    Attributes:
        n_layers: the model's.
        n_prompts: prompts in all.
        n_tokens: tokens of each where one token is generated.
        n_short: tokens of each where more are.
        n_new: how many more.
        buffer_bytes: shared memory for rows on their way.
    """

    n_layers: int
    n_prompts: int
    n_tokens: int
    n_short: int
    n_new: int
    buffer_bytes: int

    @cache  # noqa: B019
    def prompts(self, n_tokens: int) -> list[dict[str, list[int]]]:
        """Random prompts of equal length."""
        rng = random.Random(0)  # noqa: S311
        return [
            {"prompt_token_ids": [rng.randrange(1000, 30000) for _ in range(n_tokens)]}
            for _ in range(self.n_prompts)
        ]

    @property
    def depths(self) -> list[int]:
        """How many layers are captured, one after the other."""
        return sorted({min(n, self.n_layers) for n in (1, 4, self.n_layers)})

    def spread(self, n: int) -> list[int]:
        """N layers, evenly."""
        return [self.n_layers * (i + 1) // n - 1 for i in range(n)]

    def generate(self, llm: Any, *, new: bool) -> None:
        """Plain generation: of one token each, or of many behind shorter prompts."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=self.n_new if new else 1, temperature=0, **SAMPLING)
        llm.generate(self.prompts(self.n_short if new else self.n_tokens), sampling, use_tqdm=False)

    def feed(self, llm: Any) -> None:
        """Plain generation of many, put into the engine as a capture does.

        A pipeline's batches are what happens to have arrived when each is begun, so that how requests are
        put in decides how even they are, and with that how fast it is.
        """
        from easysteer_data.engine.feed import Feed, Request, Sampling

        n_seqs = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        feed = Feed(llm, Sampling(self.n_new, SAMPLING), window=2 * n_seqs)
        requests = (Request(i, prompt, None) for i, prompt in enumerate(self.prompts(self.n_short)))
        check_rows(sum(len(finished) for finished in feed.run(requests)), self.n_prompts, "prompts")

    def capture(self, llm: Any, n_layers: int, select: dict[str, Any] | None, *, new: bool) -> None:
        """The same, rows proven and handed over."""
        from easysteer_data import capture_stream

        layers, n_rows = self.spread(n_layers), 0
        for part in capture_stream(
            llm,
            self.prompts(self.n_short if new else self.n_tokens),
            max_tokens=self.n_new if new else 1,
            layers=layers,
            select=select,
            # Where a part of all layers fits a box, it is handed over where it arrived.
            batch_prompts=64 if new or select else {1: 16, 4: 4}.get(n_layers, 2),
            buffer_bytes=self.buffer_bytes,
            **SAMPLING,
        ):
            n_rows += len(part.layers[layers[0]])
        of_each = self.n_tokens if select is None else self.n_new - 1 if select == NEW else 1
        check_rows(n_rows, self.n_prompts * of_each)


def check_rows(n_rows: int, expected: int, what: str = "rows") -> None:
    """Stop where rows are missing: a figure without them says nothing."""
    if n_rows != expected:
        raise SystemExit(f"{n_rows} {what} came, {expected} were expected")
