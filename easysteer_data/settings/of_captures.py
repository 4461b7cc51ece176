"""The settings of a capture: model, engine, shards, where they are made and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from easysteer_data.errors import SettingsError
from easysteer_data.tokens import OverLong
from easysteer_data.types import Gates, Stream

StorageDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3", "int8"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model.

    Attributes:
        path: folder of a Hugging Face model.
        dtype: dtype of the weights and activations; "auto" takes the model's own.
        max_model_len: longest prompt plus completion in tokens; None = the model's window.
    """

    path: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How vLLM runs it.

    Attributes:
        enforce_eager: run without torch.compile and CUDA graphs: starts sooner, runs slower on GPUs.
        in_process: run the engine in this process; False = in a child process; None = vLLM's choice.
        max_num_seqs: prompts in one step at most; None = vLLM's choice.
        max_num_batched_tokens: tokens in one step at most; None = vLLM's choice.
        gpu_memory_utilization: share of the device's memory for weights and KV cache; None = vLLM's choice.
        options: further arguments of vLLM's `LLM`.
    """

    enforce_eager: bool = False
    in_process: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def llm_kwargs(self) -> dict[str, Any]:
        """Return the arguments of `LLM` that are set."""
        named = ("enforce_eager", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
        values = {name: getattr(self, name) for name in named}
        return {name: value for name, value in values.items() if value is not None} | dict(self.options)


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """What is captured.

    Attributes:
        streams: the streams to store, all of one forward pass.
        layers: true layer ids, None = all; a stream that only some layers have is stored for those.
        storage: dtype in which the rows rest; the engine's rows are converted to it, and what that loses is
            measured. float8_e4m3 and int8 have a scale a row.
        rows: False keeps the statistics and the prompt table alone.
        max_tokens: tokens to generate for each prompt; 1 = the prompt's forward pass only.
        over_long: what to do with prompts that don't fit the model's window; see `tokens.tokenize`.
        gates: "raise" stops at a row that is all zeros or not finite, "count" counts such rows.
    """

    streams: tuple[Stream, ...] = ("hidden_states",)
    layers: tuple[int, ...] | None = None
    storage: StorageDtype = "float32"
    rows: bool = True
    max_tokens: int = 1
    over_long: OverLong = "fail"
    gates: Gates = "raise"


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """How rows are divided over files.

    Attributes:
        shard_bytes: target size of one layer's shard.
        min_shards: at least this many shards, where there are as many prompts, so that readers can share.
        max_buffer_gb: rows of all layers in memory at once, in 10^9 bytes: being collected, waiting for the
            disk and being written. Makes shards smaller where it must. On a GPU a quarter of it holds rows on
            their way: the engine does not wait if some five of its steps fit.
        min_free_gb: a capture stops cleanly before it leaves the disk less than this.
    """

    shard_bytes: int = 512 * 2**20
    min_shards: int = 8
    max_buffer_gb: float = 4.0
    min_free_gb: float = 1.0

    def __post_init__(self) -> None:
        if self.shard_bytes < 1 or self.min_shards < 1:
            raise SettingsError("shards: shard_bytes and min_shards must be at least 1")
        if not (0 < self.max_buffer_gb < float("inf") and 0 <= self.min_free_gb < float("inf")):
            raise SettingsError("shards: max_buffer_gb must be above 0, min_free_gb 0 or more")


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Who captures the shards.

    Attributes:
        kind: "local" = an engine of this process; "ray" = actors of a Ray cluster, with an engine each.
        address: of the cluster, as "auto" or "ray://host:10001"; None = one on this machine, made for it.
        n_actors: actors to ask for.
        max_actors: at most so many while shards wait, as a cluster that grows by demand gives them; None =
            `n_actors`.
        num_cpus: cores of the cluster that an actor takes.
        gpus_per_rank: GPUs for each rank of an actor's engine, which are all of one machine.
        resources: the cluster's own resources that an actor takes, by name.
        n_retries: how often a shard goes to another actor after one was lost.
        second_copy_after: times the median time of a shard after which a slow one is given to a second actor,
            once no other waits; None = never.
        start_timeout_s: how long to wait for the cluster's first actor.
        options: further arguments of `ray.init`.
    """

    kind: Literal["local", "ray"] = "local"
    address: str | None = None
    n_actors: int = 1
    max_actors: int | None = None
    num_cpus: float = 1
    gpus_per_rank: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    n_retries: int = 3
    second_copy_after: float | None = 4.0
    start_timeout_s: float = 600.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.n_actors < 1 or self.n_retries < 0:
            raise SettingsError("executor: n_actors must be at least 1, n_retries 0 or more")
        if self.max_actors is not None and self.max_actors < self.n_actors:
            raise SettingsError(
                f"executor: max_actors={self.max_actors} is below n_actors={self.n_actors}; leave it null"
            )
        if self.second_copy_after is not None and not self.second_copy_after > 1:
            raise SettingsError("executor: second_copy_after must be above 1, or null for never")


@dataclass(frozen=True, kw_only=True)
class UploadSettings:
    """How a run gets into an object store, where `out` is a URL such as s3://bucket/run.

    Attributes:
        options: of the store, those of obstore's, e.g. {"region": "eu-west-1"}.
        spool: folder for shards on their way.
        spool_gb: of the shards in it, in 10^9 bytes; one shard may always be.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    spool: str = ".cache/spool"
    spool_gb: float = 16.0
