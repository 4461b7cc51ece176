"""Made-up rows of two classes, with pairs and letters: plain arrays, contrasts and runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from easysteer_data.vectors.contrast import Contrast, LabelledRows
from tests.runs import SPLIT_CYCLE, MadeRows

Floats = npt.NDArray[np.float64]


def random_contrast(n_rows: int, n_layers: int = 2, width: int = 10, seed: int = 0) -> Contrast:
    """Rows of two classes that differ, of correlated elements: one constant, one far larger than the others.

    Two rows make a group, one of each class; every third row has no confound, the others one of two.
    """
    rng = np.random.default_rng(seed)
    positive = np.arange(n_rows) % 2 == 1
    x = rng.normal(size=(n_rows, n_layers, width)) @ (np.eye(width) + 0.3 * rng.normal(size=(width, width)))
    x[positive] += rng.normal(size=(n_layers, width))
    x[..., 0] = 5.0
    x[..., 1] = 100 + 20 * x[..., 1]
    codes = rng.permutation(n_rows) % 3 - 1
    return contrast_of(x, positive, np.arange(n_rows) // 2, codes)


def contrast_of(
    x: Floats, positive: npt.NDArray[np.bool_], group: npt.NDArray[np.int64], confound: npt.NDArray[np.int64]
) -> Contrast:
    """Plain arrays as an estimator gets them."""
    rows = LabelledRows(*(torch.from_numpy(array) for array in (x, positive, group, confound)))
    return Contrast(rows.class_means(), rows.x.norm(dim=-1).mean(dim=0), lambda: rows)


def arrays(contrast: Contrast) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Rows [n, layers, width] and whether each is positive."""
    return contrast.rows.x.numpy(), contrast.rows.positive.numpy()


def paired_rows(n_pairs: int = 120, letter: float = 0.0, width: int = 12) -> MadeRows:
    """Pairs of a false and a true answer; the class is weak in layer 0, strong in 4, absent in 8.

    Args:
        n_pairs: pairs; a pair is a group.
        letter: how far the letters A and B lie apart. Of the train pairs five in six have A for the true
            answer, of the others half.
        width: elements of a row.
    """
    rng = np.random.default_rng(3)
    class_axis, letter_axis = np.linalg.qr(rng.normal(size=(width, 2)))[0].T
    splits = [SPLIT_CYCLE[pair % len(SPLIT_CYCLE)] for pair in range(n_pairs)]
    n_seen = dict.fromkeys(SPLIT_CYCLE, 0)
    rows, letters = [], []
    for split in splits:
        n_seen[split] += 1
        true_is_a = n_seen[split] % (6 if split == "train" else 2) != 0
        # What a pair has in common is far larger than what tells its sides apart.
        shared = 3 * rng.normal(size=(3, width))
        for is_true in (0, 1):
            is_a = is_true == true_is_a
            step = np.array([0.5, 2.0, 0.0])[:, None] * class_axis * is_true + letter * letter_axis * is_a
            rows.append(shared + step + 0.5 * rng.normal(size=(3, width)))
            letters.append("A" if is_a else "B")
    return MadeRows(
        x=np.array(rows, dtype=np.float32),
        n_rows=[1] * (2 * n_pairs),
        splits=[split for split in splits for _ in range(2)],
        labels=["false", "true"] * n_pairs,
        layer_ids=(0, 4, 8),
        groups=[f"pair {pair}" for pair in range(n_pairs) for _ in range(2)],
        fields=[{"letter": value} for value in letters],
    )


def train_only(rows: MadeRows) -> MadeRows:
    """The same rows, all in the train split."""
    return replace(rows, splits=["train"] * len(rows.splits))
