"""vLLM's GPU worker with taps: `LLM(worker_cls="easysteer_data.engine.worker_gpu.GPUTapWorker")`."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from easysteer_data.engine.worker import TapWorkerMixin


class GPUTapWorker(TapWorkerMixin, Worker):  # type: ignore[misc]
    """A GPU worker whose model is tapped."""
