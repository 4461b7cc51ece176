"""What a batch must be for a probe to learn from it or be measured on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.standardise import with_layers


def labelled_rows(
    batch: Mapping[str, torch.Tensor], shape: Sequence[int], label_names: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take rows and classes out of a batch of the datamodule.

    Args:
        batch: holds `x` and `y`.
        shape: (layers, width) that the rows must have.
        label_names: the classes that the probe knows.

    Returns:
        Rows [rows, layers, width] and their classes, int64 [rows].

    Raises:
        RunError: the rows have no labels, numbers as labels, or other classes.
        SettingsError: the rows are of other layers or another width.
    """
    target = batch.get("y")
    if target is None:
        raise RunError("the rows have no labels, which a probe needs: capture a corpus that has some")
    if target.is_floating_point():
        raise RunError("the rows' labels are numbers, but a logistic probe needs classes")
    if not ((target >= 0) & (target < len(label_names))).all():
        raise RunError(
            f"a batch has rows without a label, or of none of the probe's classes ({', '.join(label_names)});"
            " ActivationDataModule(labelled_only=True) leaves out rows without a label"
        )
    x = with_layers(batch["x"])
    if tuple(x.shape[1:]) != tuple(shape):
        raise SettingsError(
            f"a batch has rows of [layers, width] = {list(x.shape[1:])}, the probe's are {list(shape)}"
        )
    return x, target
