"""Estimators of directions, by name. A new one is a file here, a name in `EstimatorName` and a line below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

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

# Each takes C and the seed, of which it uses what it knows.
ESTIMATORS: Mapping[EstimatorName, Callable[[float, int], Estimator]] = MappingProxyType(
    {
        "diff_means": lambda _C, _seed: DifferenceOfMeans(),
        "diff_means_balanced": lambda _C, _seed: BalancedDifferenceOfMeans(),
        "paired_pca": lambda _C, _seed: PairedPCA(),
        "logistic": lambda C, _seed: LogisticDirection(C),
        "mass_mean": lambda _C, _seed: WhitenedDifference(),
        "lat": lambda _C, seed: RandomPairPCA(seed),
    }
)


def make_estimators(
    names: Sequence[str],
    C: float = 1.0,  # noqa: N803 - scikit-learn's name
    seed: int = 0,
) -> dict[str, Estimator]:
    """Estimators by name, in the order of the names.

    Args:
        names: one or several keys of ESTIMATORS.
        C: inverse strength of the penalty of `logistic`.
        seed: of the pairing of `lat`.

    Raises:
        SettingsError: there is no such estimator, none is named, or one is named twice.
    """
    makers = {str(name): make for name, make in ESTIMATORS.items()}
    unknown = [name for name in names if name not in makers]
    if unknown or not names or len(set(names)) != len(names):
        fault = f"there is no {unknown[0]!r}" if unknown else "name one, or several different ones"
        raise SettingsError(f"vector.estimators is {list(names)}: {fault}; there are {', '.join(makers)}")
    return {name: makers[name](C, seed) for name in names}
