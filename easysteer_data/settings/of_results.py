"""The settings of what is made of a run: serving, probes, vectors, checks and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from easysteer_data.data_options import LoaderOptions, Normalisation, RowFilter, RowOrder, ServedDtype, Tail
from easysteer_data.errors import SettingsError
from easysteer_data.types import Stream

ProbeKind = Literal["logistic", "ridge", "mass_mean", "lda", "mlp", "attention_pooled"]
EstimatorName = Literal["diff_means", "diff_means_balanced", "paired_pca", "logistic", "mass_mean", "lat"]


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
        loading: how batches are loaded.
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
        orthogonal: whether `diff_means_balanced` also leaves out what lies along the steps between the
            confound's values, so that its projections do not tell them apart.
        C: inverse strength of the L2 penalty of `logistic`, with scikit-learn's meaning.
        seed: of the random pairs of `lat`.
        export: other formats to write beside vector.safetensors.
    """

    estimators: tuple[EstimatorName, ...] = ("diff_means",)
    confound: str | None = "letter"
    orthogonal: bool = True
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
