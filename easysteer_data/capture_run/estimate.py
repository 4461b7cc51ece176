"""What a capture would take, before it is started: rows, bytes, shards, hours.

From the corpus or a sample of it, and a short timed trial of the real engine. Writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from easysteer_data.capture_run.engine_lease import EngineLease
from easysteer_data.capture_run.plan import CapturePlan, plan_capture
from easysteer_data.capture_run.space import free_bytes, run_bytes
from easysteer_data.corpus import read_corpus
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.session import CaptureSession
from easysteer_data.settings import ExperimentSettings
from easysteer_data.types import Prompt, Stream

N_SAMPLED = 2000  # prompts that are tokenised at most
_N_WARM = 8  # prompts of the trial that are not timed
_N_TIMED = 64


@dataclass(frozen=True, slots=True)
class CaptureEstimate:
    """What a capture would take.

    Attributes:
        n_prompts: prompts of the corpus.
        n_sampled: prompts that were tokenised; the figures below are scaled from these.
        n_tokens: tokens that the model reads at most.
        n_rows: rows of each layer at most.
        n_shards: shards.
        layer_bytes: stream -> bytes of one layer.
        n_layers: stream -> its layers.
        n_bytes: of the whole run.
        free_bytes: of the disk.
        tokens_per_s: of the engine in the trial.
        n_timed: prompts of the trial.
    """

    n_prompts: int
    n_sampled: int
    n_tokens: int
    n_rows: int
    n_shards: int
    layer_bytes: dict[Stream, int]
    n_layers: dict[Stream, int]
    n_bytes: int
    free_bytes: int
    tokens_per_s: float
    n_timed: int

    @property
    def hours(self) -> float:
        """Time that the engine takes at the trial's rate."""
        return self.n_tokens / self.tokens_per_s / 3600

    @property
    def fits(self) -> bool:
        """Whether the disk has room for the run."""
        return self.n_bytes < self.free_bytes

    def table(self) -> str:
        """The figures, one a line."""
        exact = self.n_sampled == self.n_prompts
        source = "all counted" if exact else f"scaled from a sample of {self.n_sampled:,}"
        lines = [
            ("prompts", f"{self.n_prompts:,} ({source})"),
            ("tokens", f"{self.n_tokens:,}"),
            ("rows a layer", f"{self.n_rows:,}"),
            ("shards", f"{self.n_shards:,}"),
            *((stream, self._size(stream)) for stream in self.layer_bytes),
            ("disk", f"{self.n_bytes / 1e9:.3f} GB needed, {self.free_bytes / 1e9:.1f} GB free"),
            ("engine", f"{self.tokens_per_s:,.0f} tokens/s in a trial of {self.n_timed} prompts"),
            ("time", _duration(self.hours)),
        ]
        width = max(len(name) for name, _ in lines)
        table = "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
        return table if self.fits else f"{table}\n\nThis run does not fit the disk."

    def _size(self, stream: Stream) -> str:
        n_layers, n_bytes = self.n_layers[stream], self.layer_bytes[stream]
        return f"{n_layers} layers x {n_bytes / 1e9:.3f} GB = {n_layers * n_bytes / 1e9:.3f} GB"


def estimate_capture(settings: ExperimentSettings, out: Path, llm: Any = None) -> CaptureEstimate:
    """Report what a capture into `out` would take.

    Raises:
        SettingsError, CorpusError: as for the capture itself, as far as the sample shows it.
    """
    corpus = read_corpus(settings.corpus)
    sample = _spread(corpus, N_SAMPLED)
    plan = plan_capture(settings, sample)
    with EngineLease(plan, llm) as lease:
        shapes = lease.shapes()
        header = plan.header(shapes, lease.layouts())
        tokens_per_s, n_timed = _trial(plan, lease)
    # Prompts that a policy leaves out are as frequent in the corpus as in the sample.
    n_prompts = round(len(corpus) * len(plan.prompts) / len(sample))
    whole = replace(plan, n_rows=tuple(islice(cycle(plan.n_rows), n_prompts)))
    n_rows, n_tokens = sum(whole.n_rows), round(plan.n_tokens * n_prompts / len(plan.prompts))
    return CaptureEstimate(
        n_prompts=len(corpus),
        n_sampled=len(sample),
        n_tokens=n_tokens,
        n_rows=n_rows,
        n_shards=len(whole.plan_shards(shapes)),
        layer_bytes={s: n_rows * h.row_bytes if header.rows else 0 for s, h in header.streams.items()},
        n_layers={s: len(h.layer_ids) for s, h in header.streams.items()},
        n_bytes=run_bytes(header, n_rows, n_tokens, n_prompts),
        free_bytes=free_bytes(out),
        tokens_per_s=tokens_per_s,
        n_timed=n_timed,
    )


def _spread(prompts: Sequence[Prompt], n_most: int) -> list[Prompt]:
    """At most so many prompts, evenly spaced, numbered anew."""
    step = max(len(prompts) / n_most, 1.0)
    places = dict.fromkeys(int(i * step) for i in range(min(n_most, len(prompts))))
    return [replace(prompts[place], index=i) for i, place in enumerate(places)]


def _trial(plan: CapturePlan, lease: EngineLease) -> tuple[float, int]:
    """Tokens a second of the engine while it captures, and the prompts that were timed; rows are dropped."""
    prompts = _spread(plan.prompts, _N_WARM + _N_TIMED)
    warm, timed = prompts[:_N_WARM], prompts[_N_WARM:] or prompts
    n_tokens, spent_s = 0, 0.0
    with CaptureSession(lease.engine, lease.shapes(), plan.selection.reduce) as session:
        for part in (warm, timed):
            requests = [
                Request(i, {"prompt_token_ids": list(prompt.token_ids)}, plan.selection.spec)
                for i, prompt in enumerate(part)
            ]
            feed = Feed(
                lease.llm, Sampling(plan.settings.capture.max_tokens, {}), 2 * lease.engine.max_num_seqs
            )
            started_s = time.monotonic()
            outputs = []
            for finished in feed.run(requests):
                session.look()
                outputs += [output for _, output in finished]
            spent_s = time.monotonic() - started_s
            n_tokens = sum(len(o.prompt_token_ids) + len(o.outputs[0].token_ids) - 1 for o in outputs)
    return n_tokens / spent_s, len(timed)


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.0f} seconds"
