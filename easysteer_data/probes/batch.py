"""What a batch must be for a probe to learn from it or be measured on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.standardise import with_layers


def labelled_examples(
    batch: Mapping[str, torch.Tensor], shape: Sequence[int], label_names: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take rows and labels out of a batch of the datamodule.

    Args:
        batch: holds `x` and `y`.
        shape: (layers, width) that the rows must have.
        label_names: the classes that the probe knows; none where it predicts numbers.

    Returns:
        Rows [rows, layers, width], and classes int64 or numbers float32 [examples].

    Raises:
        RunError: the rows have no labels, labels of another kind, or other classes.
        SettingsError: the rows are of other layers or another width.
    """
    target = batch.get("y")
    if target is None:
        raise RunError("the rows have no labels, which a probe needs: capture a corpus that has some")
    if target.is_floating_point() == bool(label_names):
        found, needed = ("numbers", "classes") if label_names else ("classes", "numbers")
        raise RunError(f"the rows' labels are {found}, but this probe needs {needed}")
    if not label_names and target.isnan().any():
        raise RunError(
            "a batch has rows without a label; ActivationDataModule(labelled_only=True) leaves them out"
        )
    if label_names and not ((target >= 0) & (target < len(label_names))).all():
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
