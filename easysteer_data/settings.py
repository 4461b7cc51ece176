"""The typed settings of an experiment, one frozen dataclass a config group, and how they are read.

Pure checks, no I/O. `build` is the only way in from a config: unknown keys are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from easysteer_data.corpus.settings import CorpusSettings
from easysteer_data.data_options import LoaderOptions, Normalisation, RowFilter, RowOrder, ServedDtype, Tail
from easysteer_data.errors import SettingsError
from easysteer_data.steer_options import SteerSettings
from easysteer_data.tokens import OverLong
from easysteer_data.types import Gates, OnExisting, Stream

T = TypeVar("T")
StorageDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3", "int8"]
ProbeKind = Literal["logistic", "ridge", "mass_mean", "lda", "mlp", "attention_pooled"]
EstimatorName = Literal["diff_means", "diff_means_balanced", "paired_pca", "logistic", "mass_mean", "lat"]


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
            disk and being written. Makes shards smaller where it must.
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


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How a run is served.

    Attributes:
        stream: the stream to read.
        layers: one layer, a list of layers, or None for all.
        batch_size: rows a batch, None = a whole split at once, as the solver "lbfgs" needs.
        num_workers: loader processes.
        seed: of the order of training rows, and of the draw of `rows.limit`.
        dtype: element type of the rows that are served.
        tail: what becomes of training rows that fill no whole batch, see `serving.sampler.BatchPlan`.
        labelled_only: leave out rows without a label.
        rows: which rows are served.
        order: of the training rows.
        loading: of loader processes.
        normalise: how rows are brought to a common scale, see `serving.normalise.Normaliser`.
        check: of the run's files: "cheap" looks for presence, size and index, "full" reads all bytes.
        root: URL of the run folder (s3://, gs://, https://, hf://, or `pipe:` and a command), None = a local
            one; the layers that are asked for are copied once.
        root_options: of the URL's file system, see `shards.remote_files.RemoteFiles`.
        cache: folder of such copies.
    """

    stream: Stream = "hidden_states"
    layers: int | tuple[int, ...] | None = None
    batch_size: int | None = None
    num_workers: int = 0
    seed: int = 0
    dtype: ServedDtype = "float32"
    tail: Tail = "spread"
    labelled_only: bool = False
    rows: RowFilter = field(default_factory=RowFilter)
    order: RowOrder = field(default_factory=RowOrder)
    loading: LoaderOptions = field(default_factory=LoaderOptions)
    normalise: Normalisation = "none"
    check: Literal["cheap", "full"] = "cheap"
    root: str | None = None
    root_options: Mapping[str, Any] = field(default_factory=dict)
    cache: str = ".cache/runs"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `ActivationDataModule`, all but the run."""
        elsewhere = ("root", "root_options", "cache")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in elsewhere}


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How probes are fitted and measured.

    Attributes:
        kind: kind of probe.
        C: inverse strength of the L2 penalty, with scikit-learn's meaning; not of ridge, lda, mass_mean.
        solver: of logistic: "lbfgs" holds all training rows in memory; "adam" takes batches of any size.
        alpha: weight of the L2 penalty of ridge, with scikit-learn's meaning.
        shrinkage: of the covariance of lda and mass_mean, 0 to 1; None = what suits the number of rows (OAS).
        hidden: units of the hidden layer of mlp.
        lr: learning rate that adam starts from; None = the kind's own.
        max_epochs: passes over the training rows of what adam trains.
        patience: epochs without a lower validation loss after which adam stops; None = all epochs.
        seed: of weights to start from, shuffled labels and bootstraps.
        bootstrap: draws of groups for the intervals of figures; 0 = no intervals.
        interval: share of the draws inside an interval.
        bins: of the calibration error.
        control: train on shuffled labels, too.
        bag_of_tokens: compare with a regression on the prompts' token counts.
        n_prompts: prompts of the highest and of the lowest scores to report.
        by_position: a probe for each of `data.rows.positions`.
        transfer: folders of other runs, on whose test splits the probe is tested, and theirs on this one's.
        transfer_labels: whether classes of other runs are matched by "name", or by "order" of their index.
    """

    kind: ProbeKind = "logistic"
    C: float = 1.0
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    alpha: float = 1.0
    shrinkage: float | None = None
    hidden: int = 64
    lr: float | None = None
    max_epochs: int = 100
    patience: int | None = 10
    seed: int = 0
    bootstrap: int = 1000
    interval: float = 0.95
    bins: int = 10
    control: bool = True
    bag_of_tokens: bool = True
    n_prompts: int = 10
    by_position: bool = False
    transfer: tuple[str, ...] = ()
    transfer_labels: Literal["name", "order"] = "name"

    def __post_init__(self) -> None:
        if self.bootstrap < 0 or self.bins < 1 or self.n_prompts < 0 or self.max_epochs < 1:
            raise SettingsError(
                "probe: bins and max_epochs must be at least 1, bootstrap and n_prompts at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class LoggerSettings:
    """Where losses and figures are logged.

    Attributes:
        kind: "default" is TensorBoard for probes that are trained in epochs, where it is installed.
        project: of W&B, or the experiment of MLflow.
        uri: of MLflow's server, None = a folder of the experiment's outputs.
        offline: of W&B: keep the log on disk.
    """

    kind: Literal["default", "none", "tensorboard", "wandb", "mlflow"] = "default"
    project: str = "easysteer-data"
    uri: str | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """How steering vectors are fitted.

    Attributes:
        estimators: one or several, which are compared on held-out groups.
        confound: field of the prompts that a direction should not hold, such as the answer's letter;
            `diff_means_balanced` is freed of it, the others are checked. None = no check.
        C: inverse strength of the L2 penalty of `logistic`, with scikit-learn's meaning.
        seed: of the random pairs of `lat`.
        export: other formats to write beside vector.safetensors.
    """

    estimators: tuple[EstimatorName, ...] = ("diff_means",)
    confound: str | None = "letter"
    C: float = 1.0
    seed: int = 0
    export: tuple[Literal["gguf", "npy"], ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """How a run is compared with Hugging Face, which loads `model.path`.

    Attributes:
        n: prompts to sample.
        seed: of the sample.
    """

    n: int = 32
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class InspectSettings:
    """What is done about a run's bad files.

    Attributes:
        repair: remove them and capture their shards again.
    """

    repair: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What the report shows.

    Attributes:
        prompts: indices of the prompts that are shown token by token; None = those that the probe scores
            highest and lowest.
    """

    prompts: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Everything that defines an experiment; every stage reads its own part.

    Attributes:
        name: names the outputs.
        out: folder of the experiment's outputs; of a capture also a URL, s3://bucket/run or gs://.
        run: folder of the captured run, None = the experiment's own, OUT/capture.
        captures: folder of runs that experiments share, found by their fingerprint; OUT/capture is then a
            link. None = not shared. The jobs of a multirun share theirs.
        progress: show progress bars.
        select: which rows are kept, see RowSelection; None = all.
        on_existing: what a capture does with a run that is there: "resume" continues it or leaves it alone
            where it is finished, "fail" refuses, "overwrite" removes it first.
        dry_run: report what a capture would take, from a sample and a short trial of the engine; write none.
        shard_slice: of a capture: only this share of the shards, as "3/16", the third of sixteen; the stage
            merge joins them. None = all.
    """

    name: str
    out: str
    model: ModelSettings
    corpus: CorpusSettings
    engine: EngineSettings = field(default_factory=EngineSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    select: Mapping[str, Any] | None = None
    shards: ShardSettings = field(default_factory=ShardSettings)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    upload: UploadSettings = field(default_factory=UploadSettings)
    data: DataSettings = field(default_factory=DataSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    vector: VectorSettings = field(default_factory=VectorSettings)
    steer: SteerSettings = field(default_factory=SteerSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    inspect: InspectSettings = field(default_factory=InspectSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    run: str | None = None
    captures: str | None = None
    progress: bool = True
    on_existing: OnExisting = "resume"
    dry_run: bool = False
    shard_slice: str | None = None


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Make a settings dataclass, and its nested ones, from plain values.

    Raises:
        SettingsError: an unknown key (names the nearest valid one), a missing key, or a wrong type.
    """
    _refuse_unknown(cls, values, "")
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise SettingsError("\n".join(_describe(dict(fault)) for fault in error.errors())) from error


def _refuse_unknown(cls: type, values: Mapping[str, Any], path: str) -> None:
    hints = get_type_hints(cls)
    valid = [f.name for f in fields(cls)]
    for key, value in values.items():
        if key not in valid:
            raise SettingsError(unknown_key(f"{path}{key}", [f"{path}{name}" for name in valid]))
        if isinstance(value, Mapping) and is_dataclass(hints[key]):
            _refuse_unknown(hints[key], value, f"{path}{key}.")


def unknown_key(key: str, valid: list[str]) -> str:
    """Return the message for a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"valid keys are {', '.join(valid)}"
    return f"unknown key {key!r}; {hint}"


def _describe(fault: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("constrained", "tuple[")))
    if fault["type"] == "missing":
        return f"{key}: must be given"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')} (got {fault['input']!r})"
