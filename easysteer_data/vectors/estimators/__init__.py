"""Estimators of directions, by name. A new one is a file here, a name in `EstimatorName`, a line below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from easysteer_data.errors import SettingsError
from easysteer_data.settings import EstimatorName
from easysteer_data.vectors.estimators.contract import Estimator
from easysteer_data.vectors.estimators.difference_of_means import BalancedDifferenceOfMeans, DifferenceOfMeans
from easysteer_data.vectors.estimators.logistic import LogisticDirection
from easysteer_data.vectors.estimators.paired_pca import PairedPCA
from easysteer_data.vectors.estimators.random_pair_pca import RandomPairPCA
from easysteer_data.vectors.estimators.whitened import WhitenedDifference

__all__ = [
    "ESTIMATORS",
    "BalancedDifferenceOfMeans",
    "DifferenceOfMeans",
    "Estimator",
    "LogisticDirection",
    "PairedPCA",
    "RandomPairPCA",
    "WhitenedDifference",
    "make_estimators",
]

ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)


def make_estimators(
    names: Sequence[str],
    C: float = 1.0,  # noqa: N803 - scikit-learn's name
    seed: int = 0,
    orthogonal: bool = True,
) -> dict[str, Estimator]:
    """Estimators by name, in the order of the names.

    Args:
        names: one or several of ESTIMATORS.
        C: inverse strength of the penalty of `logistic`.
        seed: of the random pairs of `lat`.
        orthogonal: of `diff_means_balanced`, see there.

    Raises:
        SettingsError: there is no such estimator, none is named, one is named twice, or C can't be used.
    """
    known: dict[EstimatorName, Estimator] = {
        "diff_means": DifferenceOfMeans(),
        "diff_means_balanced": BalancedDifferenceOfMeans(orthogonal),
        "paired_pca": PairedPCA(),
        "logistic": LogisticDirection(C),
        "mass_mean": WhitenedDifference(),
        "lat": RandomPairPCA(seed),
    }
    found = {str(name): estimator for name, estimator in known.items()}
    unknown = [name for name in names if name not in found]
    if unknown or not names or len(set(names)) != len(names):
        fault = f"there is no {unknown[0]!r}" if unknown else "name one, or several different ones"
        raise SettingsError(f"vector.estimators is {list(names)}: {fault}; there are {', '.join(ESTIMATORS)}")
    return {name: found[name] for name in names}
