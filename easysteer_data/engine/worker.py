"""What our worker classes add to vLLM's: taps put in before the first trace, and methods for collective_rpc.

The concrete classes are in `worker_cpu.py` and `worker_gpu.py`; `LLM(worker_cls=...)` names one of them.
"""

from __future__ import annotations

from typing import Any

from easysteer_data.engine.kit import TapKit
from easysteer_data.engine.wire import KEY
from easysteer_data.types import STREAMS


class TapWorkerMixin:
    """Comes before vLLM's Worker among the bases."""

    vllm_config: Any
    _kit: TapKit

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model as vLLM does, then tap it: torch.compile traces it only later."""
        result = super().load_model(*args, **kwargs)  # type: ignore[misc]
        options = (self.vllm_config.additional_config or {}).get(KEY, {})
        self._kit = TapKit(self)
        self._kit.add(options.get("streams", STREAMS[:1]), options.get("layers"))
        if options.get("steering"):
            self._kit.add_steering()
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one step's forward pass."""
        return self._kit.run_step(super().execute_model, scheduler_output)  # type: ignore[misc]

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample the step's tokens, then take its rows."""
        return self._kit.run_sampling(super().sample_tokens, grammar_output)  # type: ignore[misc]

    def easysteer_facts(self) -> dict[str, Any]:
        """Say what is tapped here."""
        return self._kit.facts()

    def easysteer_start(self, order: dict[str, Any]) -> None:
        """Begin to record."""
        self._kit.start(order)

    def easysteer_fetch(self) -> dict[str, Any]:
        """Hand over what does not go through the mailbox: sums and errors."""
        return self._kit.fetch()

    def easysteer_stop(self) -> None:
        """Stop recording."""
        self._kit.stop()

    def easysteer_steer(self, recipes: list[dict[str, Any]]) -> str | None:
        """Begin to steer; return what is wrong with the recipes, None if nothing is."""
        return self._kit.steer(recipes)

    def easysteer_steer_error(self) -> str | None:
        """What went wrong since `easysteer_steer`, None if nothing did."""
        return self._kit.steer_error()

    def easysteer_unsteer(self) -> str | None:
        """Stop steering; return what went wrong since `easysteer_steer`, None if nothing did."""
        return self._kit.unsteer()
