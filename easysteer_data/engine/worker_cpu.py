"""vLLM's CPU worker with taps: `LLM(worker_cls="easysteer_data.engine.worker_cpu.CPUTapWorker")`."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from easysteer_data.engine.worker import TapWorkerMixin


class CPUTapWorker(TapWorkerMixin, CPUWorker):  # type: ignore[misc]
    """A CPUWorker whose model is tapped."""
