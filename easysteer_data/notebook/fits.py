"""Probes and steering vectors of a run in one call, with defaults that suit a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from easysteer_data.data_options import RowFilter
from easysteer_data.settings import ProbeKind, ProbeSettings, build
from easysteer_data.shards import Run
from easysteer_data.types import Stream
from easysteer_data.vectors import ContrastSource, FittedVectors, fit_vectors, make_estimators

if TYPE_CHECKING:
    from easysteer_data.probes import FittedProbe


def fit_probe(
    run: Run,
    kind: ProbeKind = "logistic",
    *,
    layers: int | Sequence[int] | None = None,
    data: Mapping[str, Any] | None = None,
    **settings: Any,
) -> FittedProbe:
    """Fit a probe to each layer on a run's train split, choose the layer on validation, measure all on test.

    Args:
        run: the run.
        kind: logistic, ridge, mass_mean, lda, mlp or attention_pooled.
        layers: decoder blocks, one as an int, None = all.
        data: further arguments of ActivationDataModule, such as `rows` or `labelled_only`.
        **settings: of the probe, see ProbeSettings: `C`, `control`, `bootstrap` and so on.

    Returns:
        The probe; its `.report` holds the figures.

    Raises:
        RunError: the run has no labels that the probe can learn, a row has none, or a split lacks a class.
        SettingsError: a setting is unknown, out of range, or doesn't suit the run.
    """
    from easysteer_data import probes  # imports Lightning
    from easysteer_data.datamodule import ActivationDataModule

    chosen = build(ProbeSettings, {"kind": kind, **settings})
    datamodule = ActivationDataModule(run.path, **{"layers": layers, "batch_size": None, **(data or {})})
    return probes.fit_probe(datamodule, chosen)


def fit_vector(
    run: Run,
    estimator: str | Sequence[str] = "diff_means",
    *,
    layers: int | Sequence[int] | None = None,
    stream: Stream = "hidden_states",
    rows: RowFilter | None = None,
    confound: str | None = "letter",
    **settings: Any,
) -> FittedVectors:
    """Fit steering vectors on a run's train split and measure them on the others.

    Args:
        run: the run; its labels are two classes, or `rows` chooses two.
        estimator: one, or several to compare; see `vectors.ESTIMATORS`.
        layers: decoder blocks, one as an int, None = all.
        stream: which of the run's streams.
        rows: which rows.
        confound: field of the prompts that a direction should not hold; None = no check.
        **settings: of the estimators: `C` of logistic, `seed` of lat, `orthogonal` of diff_means_balanced.

    Returns:
        The vectors by estimator; `.best` is the best one's, `.report` holds the figures.

    Raises:
        RunError: the run has not two classes of rows in its train split.
        SettingsError: there is no such estimator, layer or stream.
    """
    names = [estimator] if isinstance(estimator, str) else list(estimator)
    source = ContrastSource(run, stream, layers, rows, confound=confound)
    return fit_vectors(source, make_estimators(names, **settings))
