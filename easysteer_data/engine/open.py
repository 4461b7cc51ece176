"""Opens a stock vLLM engine whose workers are tapped, and closes it so that its memory is given back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from easysteer_data.engine.channel import remove_mailboxes
from easysteer_data.engine.cpu_faults import sound_arguments
from easysteer_data.engine.frozen_heap import FrozenHeap
from easysteer_data.engine.versions import check_vllm_version
from easysteer_data.engine.wire import KEY
from easysteer_data.errors import SettingsError
from easysteer_data.types import STREAMS, Stream

_SWITCH = "VLLM_ENABLE_V1_MULTIPROCESSING"
# The CPU's attention divides a prompt's keys between cores by what else is in the batch and adds the parts in
# another order then: rows differ in their last bits, and a continued run in its bytes. Read at every step.
_SPLIT_KEYS = "VLLM_CPU_ATTN_SPLIT_KV"

WORKERS = {
    "cpu": "easysteer_data.engine.worker_cpu.CPUTapWorker",
    "cuda": "easysteer_data.engine.worker_gpu.GPUTapWorker",
}


def tap_arguments(
    streams: Sequence[Stream] = ("hidden_states",),
    layers: Sequence[int] | None = None,
    steering: bool = False,
) -> dict[str, Any]:
    """Return the arguments that make `LLM(...)` a tapped engine.

    Args:
        streams: the streams to tap; each one holds a buffer of max_num_batched_tokens rows a layer.
        layers: true layer ids to tap, None = all.
        steering: make every block's output steerable.
    """
    unknown = sorted(set(streams) - set(STREAMS))
    if unknown or not streams:
        raise SettingsError(f"streams: {unknown or 'none given'}; choose from {', '.join(STREAMS)}")
    from vllm.platforms import current_platform

    device = "cpu" if current_platform.is_cpu() else "cuda"
    options: dict[str, Any] = {
        "streams": list(streams),
        "layers": None if layers is None else sorted(set(layers)),
    }
    if steering:
        options["steering"] = True
    return {"worker_cls": WORKERS[device], "additional_config": {KEY: options}}


def open_llm(
    model: str,
    *,
    streams: Sequence[Stream] = ("hidden_states",),
    layers: Sequence[int] | None = None,
    steering: bool = False,
    in_process: bool | None = None,
    **llm_kwargs: Any,
) -> Any:
    """Open a vLLM `LLM` that is ready for `easysteer_data.hidden_states.capture`.

    On the CPU a prompt's rows are the same bits in every batch; for that, VLLM_CPU_ATTN_SPLIT_KV is set to 0
    in this process, unless it is set already.

    Args:
        model: folder or name of the model, as for `LLM`.
        streams: streams to tap.
        layers: true layer ids to tap, None = all. A subset saves buffers; a capture may ask for fewer.
        steering: make every block's output steerable, by `easysteer_data.generate` and
            `capture(..., steering=...)`; costs a small kernel a block, also while nothing is steered.
        in_process: run the engine in this process (True) or in a child (False); None leaves it to vLLM.
        **llm_kwargs: passed to `LLM` (dtype, max_model_len, enforce_eager, ...).

    Raises:
        UnsupportedEngineError: vLLM is missing or its version was not checked.
        SettingsError: an unknown stream, or in this process a layer that the model does not have.
    """
    check_vllm_version()
    from vllm import LLM

    os.environ.setdefault(_SPLIT_KEYS, "0")
    arguments = tap_arguments(streams, layers, steering)
    arguments["additional_config"] |= llm_kwargs.pop("additional_config", None) or {}
    if arguments["worker_cls"] == WORKERS["cpu"]:
        arguments |= sound_arguments(model)
    with _multiprocessing(None if in_process is None else not in_process):
        return LLM(model=model, **{"use_tqdm_on_load": False, **arguments, **llm_kwargs})


@contextmanager
def _multiprocessing(wanted: bool | None) -> Iterator[None]:
    """Let vLLM read its switch as wanted, None = as it is; put it back for engines that the user opens."""
    before = os.environ.get(_SWITCH)
    if wanted is not None:
        os.environ[_SWITCH] = str(int(wanted))
        from vllm import envs

        # A process that opened an engine before has cached the switch.
        getattr(envs, "disable_envs_cache", lambda: None)()
    try:
        yield
    finally:
        if wanted is not None:
            os.environ.pop(_SWITCH)
            if before is not None:
                os.environ[_SWITCH] = before


def close_llm(llm: Any) -> None:
    """Shut the engine down, so that another one can follow in this process.

    Drop your own references to `llm` for its memory to come back.
    """
    remove_mailboxes(llm)
    core = llm.llm_engine.engine_core
    in_process = type(core).__name__ == "InprocClient"
    core.shutdown()
    del llm, core
    gc.collect()
    if in_process:  # an engine in a child process left no distributed state in this one
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    FrozenHeap.look_again()
