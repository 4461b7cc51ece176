"""The capture's progress bar: prompts, tokens a second, bytes written, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm


class CaptureProgress:
    """A tqdm bar over prompts."""

    def __init__(self, n_prompts: int, *, shown: bool) -> None:
        self._bar = tqdm(
            total=n_prompts, unit="prompt", desc="capture", disable=not shown, dynamic_ncols=True
        )
        self._n_tokens = 0
        self._n_bytes = 0
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def add_outputs(self, outputs: Sequence[tuple[int, Any]]) -> None:
        """Count finished prompts and the tokens that the model read or made."""
        for _, output in outputs:
            self._n_tokens += len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
        self._bar.update(len(outputs))
        self._show()

    def add_shard(self, n_prompts: int, n_tokens: int, n_bytes: int) -> None:
        """Count a shard that another process captured."""
        self._n_tokens += n_tokens
        self._bar.update(n_prompts)
        self.add_bytes(n_bytes)

    def add_bytes(self, n_bytes: int) -> None:
        """Count bytes that are on the disk."""
        self._n_bytes += n_bytes
        self._show()

    def _show(self) -> None:
        elapsed_s = max(time.monotonic() - self._started_s, 1e-9)
        rate = f"{self._n_tokens / elapsed_s:,.0f} tokens/s, {self._n_bytes / 1e9:.2f} GB"
        self._bar.set_postfix_str(rate, refresh=False)
